"""The error that ends the demo early: its text is one sentence for the user, without a stack trace."""


class DemoError(Exception):
    """A step of the demo failed, or a scenario found a broken promise."""
