"""The virtual clock of one run."""


class VirtualClock:
    """Calling it returns the virtual time in seconds; only the event loop sets it."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now
