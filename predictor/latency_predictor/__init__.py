"""Training server and prediction server of the latency predictor."""
