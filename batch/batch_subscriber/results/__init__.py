"""Stores of results: the interface and its implementations."""
