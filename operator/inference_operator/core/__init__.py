"""What the operator decides: functions of an observation, and the state that the shell keeps between events.

Nothing in here does I/O, reads a clock or knows a client; a contract of import-linter holds that.
"""
