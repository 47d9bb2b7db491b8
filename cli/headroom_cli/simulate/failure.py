"""Why a study cannot be done."""


class SimulateError(Exception):
    """Each line of the text is one fault and says what to do."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
