"""All that talks to the world: the API server, kopf, picker pods, the health port, logs, the clock.

A module here reads, asks the core and carries out its answer; it decides as little as it can.
"""
