"""Plots of a study by matplotlib, which is an optional dependency (the extra `plots`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pool_simulation.figures import Interval
from pool_simulation.study.findings import SHOWN
from pool_simulation.study.study import Comparison, Study


class NoMatplotlibError(Exception):
    """matplotlib is not installed."""


def figure(columns: int) -> tuple[Any, Any]:
    """Return a figure and its axes, drawn without a display."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NoMatplotlibError(str(error)) from error
    drawn = Figure(figsize=(5 * columns, 4), layout="constrained")
    FigureCanvasAgg(drawn)
    return drawn, drawn.subplots(1, columns, squeeze=False)[0]


def save(drawn: Any, path: Path) -> None:
    """Write the figure in the format of the path's suffix, without dates: equal figures give equal files."""
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    drawn.savefig(path, dpi=110, metadata=metadata)


def plot_study(study: Study, path: Path) -> None:
    """Draw goodput over replicas and over load, and what each profile reaches.

    Raises NoMatplotlibError and OSError.
    """
    drawn, (by_count, by_load, by_profile) = figure(3)
    at = study.profiles[0].measured.point.replicas
    counts, loads = study.counts, study.loads
    _goodput(
        by_count, study.goal, [each.point.replicas for each in counts], [each.goodput for each in counts]
    )
    by_count.set(xlabel="replicas", title="How many replicas")
    by_count.xaxis.get_major_locator().set_params(integer=True)
    _goodput(by_load, study.goal, [each.point.scale for each in loads], [each.goodput for each in loads])
    by_load.set(xlabel="times the workload's load", title=f"What {at} of them bear")
    names = [each.name for each in study.profiles]
    ttft = [each.measured.figures["ttft_p90_s"] for each in study.profiles]
    _bars(by_profile, names, ttft, 1000, fmt="o")
    by_profile.set(ylabel="TTFT p90, ms", title=f"Profiles at {at} replicas")
    by_profile.tick_params(axis="x", rotation=30)
    by_profile.set_ylim(bottom=0)
    save(drawn, path)


def _goodput(axes: Any, goal: float, where: Sequence[float], values: Sequence[Interval]) -> None:
    _bars(axes, where, values, 100, fmt="o-")
    axes.axhline(goal * 100, color="grey", linestyle="--", linewidth=1)
    axes.set_ylabel("requests within their SLOs, %")
    lowest = 100 * min(goal, *(each.low if each.half >= 0 else each.mean for each in values), 1)
    margin = (100 - lowest) / 10
    axes.set_ylim(max(0, lowest - margin), 100 + margin)


def plot_comparison(comparison: Comparison, labels: tuple[str, str], path: Path) -> None:
    """Draw times to first and per further token of both pools. Raises NoMatplotlibError and OSError."""
    drawn, axes = figure(2)
    for each, prefix in zip(axes, ("ttft", "tpot"), strict=True):
        names = [name for name, *_ in SHOWN if name.startswith(prefix)]
        titles = [title for name, title, *_ in SHOWN if name.startswith(prefix)]
        for measured, label in zip((comparison.first, comparison.second), labels, strict=True):
            _bars(each, titles, [measured.figures[name] for name in names], 1000, fmt="o-", label=label)
        each.set(ylabel="ms", title=prefix.upper())
        each.set_ylim(bottom=0)
        each.legend()
    save(drawn, path)


def _bars(
    axes: Any, where: Sequence[object], values: Sequence[Interval], factor: float, **style: Any
) -> None:
    if "label" in style:
        style["label"] = _literal(style["label"])
    axes.errorbar(
        [_literal(each) if isinstance(each, str) else each for each in where],
        [each.mean * factor for each in values],
        yerr=[each.half * factor for each in values],
        capsize=3,
        **style,
    )
    axes.grid(alpha=0.3)


def _literal(text: str) -> str:
    """Return a label that shows the text: "$" would begin mathematics, a leading "_" hide it."""
    shown = text.replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown
