"""`headroom simulate`: its arguments, and the order of its work. What it does is in pool_simulation."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from headroom_cli.local import Groups
from headroom_cli.simulate.failure import SimulateError

# Imported when the command runs: numpy and the picker would slow every other command down.
if TYPE_CHECKING:
    from headroom_cli.simulate.inputs import Pool
    from pool_simulation.study.runner import Runner
    from pool_simulation.study.runs import Point
    from pool_simulation.workloads.start import Prepared

_DEFAULT_PLOT: Final = Path("headroom-simulation.png")
_NO_PLOT: Final = Path("none")


def add_commands(groups: Groups) -> None:
    """Add the command `simulate`."""
    command = groups.add_parser(
        "simulate",
        help="how many replicas, which profile, which thresholds: a pool simulated under a workload",
        description="Simulate a pool: the picker's own code decides over models of its servers, on a virtual "
        "clock. Prints the answer to each question with its 95 % interval over the seeds. docs/simulate.md "
        "describes the files.",
        allow_abbrev=False,
    )
    add, exclusive = command.add_argument, command.add_mutually_exclusive_group
    pools = exclusive(required=True)
    pools.add_argument("--pool", metavar="FILE", help="the InferencePool and its picker's settings; -: stdin")
    pools.add_argument(
        "--compare", nargs=2, metavar=("FILE", "FILE"), help="two pool files, under the same requests"
    )
    load = exclusive(required=True)
    load.add_argument("--workload", metavar="FILE", help="a description of the requests; -: stdin")
    load.add_argument("--trace", metavar="FILE", help="recorded requests, in Azure's or Mooncake's format")
    add("--ttft-ms", type=_milliseconds, metavar="MS", help="with --trace: SLO of the time to first token")
    add("--tpot-ms", type=_milliseconds, metavar="MS", help="with --trace: SLO of the mean time per token")
    add("--engine", metavar="PRESET", help="the model servers; default: what the pool's annotation names")
    add(
        "--set", action="append", default=[], metavar="FIELD=NUMBER",
        help="change a field of the engine, as in num_gpu_blocks=9000; repeatable",
    )  # fmt: skip
    add("--replicas", type=_count, metavar="N", help="of the pool; default: what the file says, or 1")
    add("--max-replicas", type=_count, default=64, metavar="N", help="try no more (default: %(default)s)")
    add(
        "--goal", type=_share, default=0.99, metavar="SHARE",
        help="share of the requests that must meet their SLOs (default: %(default)s)",
    )  # fmt: skip
    add(
        "--profile", action="append", default=[], metavar="NAME=FILE",
        help="try the EndpointPickerConfig in FILE as well; repeatable",
    )  # fmt: skip
    add("--seeds", type=_count, default=5, metavar="N", help="runs of each point (default: %(default)s)")
    add("--seed", type=_seed, default=1, metavar="N", help="the first seed (default: %(default)s)")
    add(
        "--jobs", type=_count, default=os.cpu_count() or 1, metavar="N",
        help="processes; the results do not depend on it (default: one for each CPU)",
    )  # fmt: skip
    add("--output", choices=("table", "json"), default="table", help="form of the results")
    add(
        "--plot", type=Path, default=_DEFAULT_PLOT, metavar="FILE",
        help="the plot, .png or .svg; none draws nothing (default: %(default)s)",
    )  # fmt: skip
    command.set_defaults(run=simulate)


def simulate(given: argparse.Namespace) -> int:
    """Do the study or the comparison that the command line asks for."""
    try:
        from headroom_cli.simulate import inputs, tables
        from pool_simulation.study.runner import Progress, Runner
        from pool_simulation.study.runs import Point, Setup
        from pool_simulation.study.workers import WorkerDiedError, Workers
    except ModuleNotFoundError as error:
        message = f"{error.name} is not installed; install headroom-operator[simulate]"
        raise SimulateError(message) from error
    from endpoint_picker.config.registry import Registry

    registry = Registry.installed()
    workload = inputs.read_workload(given)
    pools = [
        inputs.read_pool(name, given, registry) for name in ([given.pool] if given.pool else given.compare)
    ]
    profiles = inputs.read_profiles(given.profile, registry)
    _check_plot(given.plot)
    seeds = range(given.seed, given.seed + given.seeds)
    points = [Point(each.file.config, each.replicas) for each in pools]
    with _ended_by_sigterm(), tables.progress_bar() as shown, Workers(given.jobs) as workers:
        progress = Progress(shown)
        runners = [
            Runner(
                Setup(workload, each.engine, each.file.ports, dict(each.file.priorities), each.file.groups),
                seeds,
                workers,
                progress,
            )
            for each in pools
        ]
        work = _study if given.pool else _compare
        try:
            finish = work(given, pools, workload, runners, points, profiles)
        except ValueError as error:
            raise SimulateError(str(error)) from error
        except MemoryError as error:
            raise SimulateError(
                "too little memory; shorten the workload, or its prompts and answers"
            ) from error
        except WorkerDiedError as error:
            raise SimulateError(f"{error}; is there too little memory? --jobs 1 needs the least") from error
    finish()
    return 0


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Turn SIGTERM into an orderly end, so that the processes of the simulation end too."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _study(
    given: argparse.Namespace,
    pools: "list[Pool]",
    workload: "Prepared",
    runners: "list[Runner]",
    points: "list[Point]",
    profiles: dict[str, str],
) -> Callable[[], None]:
    from headroom_cli.simulate import tables
    from pool_simulation.study import findings, plot, study
    from pool_simulation.study.profiles import TRIED

    (pool,), (runner,), (point,) = pools, runners, points
    found = study.study(
        runner, point, {**TRIED, **profiles}, goal=given.goal, most_replicas=given.max_replicas
    )
    sources = (*workload.spec.streams, *workload.spec.traces)
    has_slos = any(each.slo.ttft_ms or each.slo.tpot_ms for each in sources)

    def finish() -> None:
        plotted = _plotted(given.plot, lambda path: plot.plot_study(found, path))
        if given.output == "json":
            _print_json(given, pools, findings.study_json(found, has_slos=has_slos), plotted)
            return
        title = f"Pool {pool.file.name}: {pool.replicas} replicas of {pool.engine_name}, {given.seeds} seeds"
        tables.print_study(title, found, findings.sentences(found, has_slos=has_slos))
        _print_plotted(plotted)

    return finish


def _compare(
    given: argparse.Namespace,
    pools: "list[Pool]",
    workload: "Prepared",
    runners: "list[Runner]",
    points: "list[Point]",
    profiles: dict[str, str],
) -> Callable[[], None]:
    from headroom_cli.simulate import tables
    from pool_simulation.study import findings, plot, study

    if profiles:
        raise SimulateError("--profile goes with --pool; --compare compares the two files as they are")
    first, second = runners
    found = study.compare(first, second, points[0], points[1])
    labels = (pools[0].label, pools[1].label)

    def finish() -> None:
        plotted = _plotted(given.plot, lambda path: plot.plot_comparison(found, labels, path))
        if given.output == "json":
            _print_json(given, pools, findings.comparison_json(found), plotted)
            return
        tables.print_comparison(labels, found)
        _print_plotted(plotted)

    return finish


def _print_json(
    given: argparse.Namespace, pools: "list[Pool]", found: dict[str, Any], plot: str | None
) -> None:
    about = [
        {"file": each.label, "name": each.file.name, "engine": each.engine_name, "replicas": each.replicas}
        for each in pools
    ]
    seeds = {"first": given.seed, "count": given.seeds}
    print(json.dumps({"pools": about, "seeds": seeds, **found, "plot": plot}, indent=2, allow_nan=False))


def _print_plotted(path: str | None) -> None:
    if path:
        print(f"Plot: {path}")


def _check_plot(path: Path) -> None:
    """Refuse a plot that could not be written, before the work is done."""
    if path == _NO_PLOT:
        return
    if path.suffix not in {".png", ".svg"}:
        raise SimulateError(f"--plot {path}: the name must end in .png or .svg, or be none")
    if not os.access(path.parent, os.W_OK):
        raise SimulateError(f"--plot {path}: the folder is not there, or may not be written to")


def _plotted(path: Path, draw: Callable[[Path], None]) -> str | None:
    from pool_simulation.study.plot import NoMatplotlibError

    if path == _NO_PLOT:
        return None
    try:
        draw(path)
    except NoMatplotlibError:
        text = "no plot: matplotlib is not installed; install headroom-operator[plots], or give --plot none"
        print(f"headroom: {text}", file=sys.stderr)
        return None
    except OSError as error:
        raise SimulateError(f"--plot {path}: cannot be written: {error.strerror}") from error
    return str(path)


def _milliseconds(text: str) -> float:
    return _within(float(text), 0.001, 1e8)


def _share(text: str) -> float:
    return _within(float(text), 1e-6, 1)


def _count(text: str) -> int:
    return round(_within(int(text), 1, 1000))


def _seed(text: str) -> int:
    return round(_within(int(text), 0, 2**53))


def _within(value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        message = f"{str(value)[:40]} is not from {low:g} to {high:g}"
        raise argparse.ArgumentTypeError(message)
    return value
