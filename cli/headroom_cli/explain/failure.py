"""The failure that ends `headroom explain` with one line on standard error."""


class ExplainError(Exception):
    """The decisions cannot be shown; the text says why and what to do."""
