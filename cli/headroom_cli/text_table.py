"""Tables and numbers as plain text. Pure."""

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows with their columns aligned; rows may be of unequal length."""
    rows = [[printable(text) for text in row] for row in rows]
    widths: list[int] = []
    for row in rows:
        widths += [0] * (len(row) - len(widths))
        for at, text in enumerate(row):
            widths[at] = max(widths[at], len(text))
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=False)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def printable(text: str) -> str:
    """Return a text with "\N{REPLACEMENT CHARACTER}" for each character that could act on a terminal.

    Names of tenants and models are clients' texts.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def number(value: float | None) -> str:
    """Return a number in few digits; "?" when it is unknown."""
    return "?" if value is None else f"{value:g}" if value == int(value) else f"{value:.3f}"


def part(value: float | None) -> str:
    """Return a part as per cent; "?" when it is unknown."""
    return "?" if value is None else f"{value:.0%}"


def age(seconds: float) -> str:
    """Return a time in its largest fitting unit."""
    if seconds < 10:
        return f"{seconds:.1f}s" if seconds >= 1 else f"{seconds * 1000:.0f}ms"
    return f"{seconds:.0f}s" if seconds < 120 else f"{seconds / 60:.0f}m"
