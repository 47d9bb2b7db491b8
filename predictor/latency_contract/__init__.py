"""The contract between endpoint picker, trainer and prediction servers: features, units, order, wire."""
