"""Queues of jobs: the interface and its implementations."""
