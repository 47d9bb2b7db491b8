"""Pickers: one plugin a file."""
