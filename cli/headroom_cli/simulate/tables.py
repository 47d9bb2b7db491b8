"""Tables and progress of a study on a terminal, by rich."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from pool_simulation.study.findings import SHOWN, shown, verdict
from pool_simulation.study.study import Comparison, Measured, Study


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int], None]]:
    """Show a bar on standard error, if that is a terminal; yield what sets it: runs done, runs asked for."""
    console = Console(stderr=True)
    columns = (
        TextColumn("simulating"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("runs"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)

        def update(done: int, asked: int) -> None:
            progress.update(task, completed=done, total=asked)

        yield update


def print_study(title: str, study: Study, sentences: Sequence[str]) -> None:
    """Print the pool's figures, the counts and profiles that were tried, and the sentences."""
    console = _console()
    console.print(title, soft_wrap=True, highlight=False)
    console.print(_figures(study.own))
    counts = Table("replicas", "within SLOs", "TTFT p90", "TPOT p90", title="Replicas")
    for each in study.counts:
        counts.add_row(str(each.point.replicas), *_short(each))
    console.print(counts)
    profiles = Table(
        "profile",
        "within SLOs",
        "TTFT p90",
        "TPOT p90",
        "mean TTFT against own",
        title=f"Profiles at {study.profiles[0].measured.point.replicas} replicas",
    )
    for profile in study.profiles:
        gain = profile.ttft_gain_s
        slower = type(gain)(-gain.mean, gain.half)
        cells = _short(profile.measured)
        profiles.add_row(profile.name, *cells, shown(slower, 1000, "ms", signed=True) if gain.half else "-")
    console.print(profiles)
    for sentence in sentences:
        console.print(sentence, soft_wrap=True, highlight=False)


def print_comparison(labels: tuple[str, str], comparison: Comparison) -> None:
    """Print both pools' figures and their differences."""
    table = Table("", *labels, "difference", "", title="Two pools under the same requests")
    for name, title, factor, unit in SHOWN:
        change = comparison.differences[name]
        table.add_row(
            title,
            shown(comparison.first.figures[name], factor, unit),
            shown(comparison.second.figures[name], factor, unit),
            shown(change, factor, unit, signed=True),
            verdict(name, change),
        )
    _console().print(table)


def _console() -> Console:
    # Names come from files and flags: "[/b]" in one is no markup.
    console = Console(markup=False, emoji=False)
    # A pipe has no width: long rows are wanted whole there.
    return console if console.is_terminal else Console(width=120, file=sys.stdout, markup=False, emoji=False)


def _figures(measured: Measured) -> Table:
    table = Table(show_header=False)
    for name, label, factor, unit in SHOWN:
        table.add_row(label, shown(measured.figures[name], factor, unit))
    return table


def _short(measured: Measured) -> tuple[str, str, str]:
    figures = measured.figures
    return (
        shown(figures["goodput"], 100, "%"),
        shown(figures["ttft_p90_s"], 1000, "ms"),
        shown(figures["tpot_p90_s"], 1000, "ms"),
    )
