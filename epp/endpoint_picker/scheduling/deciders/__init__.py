"""Deciders: one plugin a file."""
