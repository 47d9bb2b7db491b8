"""Admitters: one plugin a file."""
