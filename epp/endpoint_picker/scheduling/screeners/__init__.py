"""Screeners: one plugin a file."""
