"""The prediction server: follows bundles, evaluates their trees, answers pickers."""
