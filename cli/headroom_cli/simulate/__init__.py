"""`headroom simulate`: studies of a simulated pool."""
