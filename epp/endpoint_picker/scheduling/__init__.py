"""Profiles: filters, weighted scorers, one picker."""
