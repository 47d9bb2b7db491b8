"""Scorers: one plugin a file."""
