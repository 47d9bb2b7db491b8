"""What should exist for a pool: pure functions from what was observed to objects.

No client, no clock, no I/O.
"""
