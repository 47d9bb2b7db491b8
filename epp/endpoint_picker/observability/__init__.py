"""Metrics, logs and explanations."""
