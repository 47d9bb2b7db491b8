"""Studies of a pool for its user: how many replicas, which profile, which thresholds."""
