"""`headroom predictor`: what a pool predicts by, and moving it between pools."""
