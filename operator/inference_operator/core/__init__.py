"""What the operator decides: functions of an observation, and the state that the shell keeps between events.

No module here does I/O, reads a clock or imports a client: a contract of import-linter enforces it.
"""
