"""Workloads for pool simulations: generated from a YAML description, or replayed from a trace."""
