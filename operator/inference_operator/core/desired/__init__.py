"""The objects that should exist for a pool: pure functions of an Observation.

No client, no clock, no I/O.
"""
