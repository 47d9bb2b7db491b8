"""Reporters, which add to the response: one plugin a file."""
