"""What ends the demo early: one sentence for the user, never a stack trace."""


class DemoError(Exception):
    """A step of the demo or a scenario did not come out as it must."""
