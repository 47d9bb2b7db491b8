"""Counters, gauges and histograms in the Prometheus text format, cheap to read often.

A picker reads the page 20 times a second, so only the families that changed are formatted again. Pure; one
writer.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol


def labels_text(labels: dict[str, str]) -> str:
    """Return labels as `a="b",c="d"`, escaped."""
    return ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return repr(float(value))


class Family(Protocol):
    """One metric family of one engine."""

    def text(self) -> str:
        """Return its lines, each ended by a newline."""
        ...

    def parts(self) -> tuple[str, str, str, str]:
        """Return the text in four: header, series, and the same of its `_created` family."""
        ...


def merged(families: Sequence[Family]) -> str:
    """Return one family's text from that of several engines: one header, the series of all."""
    if len(families) == 1:
        return families[0].text()
    parts = [family.parts() for family in families]
    head, _, created, _ = parts[0]
    return "".join([head, *(p[1] for p in parts), created, *(p[3] for p in parts)])


class Fixed:
    """A family whose text never changes."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def text(self) -> str:
        """Return the given text."""
        return self._text

    def parts(self) -> tuple[str, str, str, str]:
        """Return the text as a header: it has no series of its own engine."""
        return self._text, "", "", ""


class Value:
    """A counter or gauge with one series for each label text."""

    __slots__ = ("_created", "_header", "_name", "_text", "_values")

    def __init__(
        self, name: str, kind: str, help_text: str, series: Sequence[str], *, created: float | None = None
    ) -> None:
        self._name = name
        self._header = f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n"
        self._values = dict.fromkeys(series, 0.0)
        self._text: str | None = None
        self._created = ("", "") if created is None else _created(name, help_text, series, created)

    def set(self, series: str, value: float) -> None:
        """Give a series a value; a series not seen before joins the page."""
        if self._values.get(series) != value:
            self._values[series] = value
            self._text = None

    def add(self, series: str, amount: float = 1.0) -> None:
        """Raise a counter."""
        self.set(series, self._values.get(series, 0.0) + amount)

    def replace(self, values: dict[str, float]) -> None:
        """Replace all series."""
        if values != self._values:
            self._values, self._text = values, None

    def text(self) -> str:
        """Return the family's lines."""
        return "".join(self.parts())

    def parts(self) -> tuple[str, str, str, str]:
        """Return header, series, and those of `_created`."""
        if self._text is None:
            lines = [f"{self._name}{{{series}}} {_number(v)}\n" for series, v in self._values.items()]
            self._text = "".join(lines)
        return self._header, self._text, *self._created


class Histogram:
    """A histogram with one series; bounds ascend and +Inf is added."""

    __slots__ = ("_bounds", "_counts", "_created", "_header", "_prefixes", "_sum", "_tails", "_text")

    def __init__(
        self, name: str, help_text: str, series: str, bounds: Sequence[float], *, created: float
    ) -> None:
        self._bounds = [float(bound) for bound in bounds]
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        self._header = f"# HELP {name} {help_text}\n# TYPE {name} histogram\n"
        marks = [*map(_number, self._bounds), "+Inf"]
        self._prefixes = [f'{name}_bucket{{{series},le="{mark}"}} ' for mark in marks]
        self._tails = (f"{name}_count{{{series}}} ", f"{name}_sum{{{series}}} ")
        self._created = _created(name, help_text, [series], created)
        self._text: str | None = None

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value
        self._text = None

    def text(self) -> str:
        """Return the family's lines."""
        return "".join(self.parts())

    def parts(self) -> tuple[str, str, str, str]:
        """Return header, series, and those of `_created`."""
        if self._text is None:
            lines, running = [], 0
            for prefix, count in zip(self._prefixes, self._counts, strict=True):
                running += count
                lines.append(f"{prefix}{running}.0\n")
            lines.append(f"{self._tails[0]}{running}.0\n{self._tails[1]}{_number(self._sum)}\n")
            self._text = "".join(lines)
        return self._header, self._text, *self._created


def _created(name: str, help_text: str, series: Sequence[str], created: float) -> tuple[str, str]:
    stem = name.removesuffix("_total")
    header = f"# HELP {stem}_created {help_text}\n# TYPE {stem}_created gauge\n"
    return header, "".join(f"{stem}_created{{{labels}}} {_number(created)}\n" for labels in series)
