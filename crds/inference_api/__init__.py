"""The API types of Headroom: one typed home for what is read from and written to a Kubernetes API server.

Imports nothing of ours and does no I/O.
"""
