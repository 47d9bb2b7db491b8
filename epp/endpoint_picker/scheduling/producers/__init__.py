"""Producers: one plugin a file."""
