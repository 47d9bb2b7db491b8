"""The contract between picker, trainer and prediction servers: features, units, order, wire, bundles."""
