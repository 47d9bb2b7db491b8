"""I/O of the operator: the API server, kopf, picker pods, the health port, logs, the clock.

A module here reads, calls functions of `core`, and carries out what they return.
"""
