"""Filters: one plugin a file."""
