"""Plugins that read facts of a request before any other stage."""
