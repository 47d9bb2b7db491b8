"""The command line of `headroom-trainer`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from latency_contract.prediction_wire import MAX_QUANTILES
from latency_predictor.listening import add_common_flags

_DEFAULT_QUANTILES: Final = "0.5,0.9"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """What a trainer is started with."""

    data: Path
    models: Path
    listen: tuple[str, ...]
    http: str
    status_http: str
    serve_peers: str
    archive: Path | None
    peers: tuple[str, ...]
    follow: str
    quantiles: tuple[float, ...]
    bound: float
    least_samples: int
    longest_pause_s: float
    max_age_s: float
    threads: int
    rows_per_second: int
    peer_timeout_s: float
    log_level: str


def parse(arguments: Sequence[str]) -> TrainerSettings:
    """Return the settings of a command line; exits with status 2 for a bad one."""
    parser = argparse.ArgumentParser(prog="headroom-trainer", description="Learns latencies from samples.")
    add = parser.add_argument
    add("--data", type=Path, default=Path("/var/lib/headroom/samples"), help="folder for samples")
    add("--models", type=Path, default=Path("/var/lib/headroom/models"), help="folder for bundles of models")
    add(
        "--listen",
        action="append",
        default=None,
        help="address of the gRPC service, HOST:PORT or unix:PATH; may be repeated (127.0.0.1:8010)",
    )
    add(
        "--http",
        default="127.0.0.1:8000",
        help="HOST:PORT of metrics, health and upstream's JSON; '' for none",
    )
    add(
        "--peer",
        action="append",
        default=[],
        help="an older trainer, HOST:PORT: samples and bundles are fetched from it before this one is ready",
    )
    add(
        "--follow",
        default="",
        metavar="HOST:PORT",
        help="the trainer that was elected to learn: samples are passed on to its --listen, its bundles are "
        "fetched every second; nothing is learned here",
    )
    add("--quantiles", default=_DEFAULT_QUANTILES, help=f"heads of the models ({_DEFAULT_QUANTILES})")
    add("--bound", type=float, default=0.9, help="which of the quantiles is the upper bound")
    add("--least-samples", type=int, default=100, help="samples before the first training")
    add("--longest-pause", type=float, default=1800.0, metavar="SECONDS", help="between two trainings")
    add("--max-age", type=float, default=7 * 86_400.0, metavar="SECONDS", help="of samples")
    add("--threads", type=int, default=1, help="of a training")
    add("--rows-per-second", type=int, default=20_000, help="samples taken; more are dropped and counted")
    add("--peer-timeout", type=float, default=60.0, metavar="SECONDS", help="for the fetch from peers")
    add(
        "--serve-peers",
        default="",
        metavar="HOST:PORT",
        help="address at which newer trainers fetch; it offers nothing that changes this one; '' for none",
    )
    add(
        "--archive",
        type=Path,
        metavar="FILE",
        help="an export that is kept on a volume, and taken up when there is no data and no peer answers",
    )
    add_common_flags(parser)
    given = parser.parse_args(arguments)
    quantiles = _quantiles(parser, given.quantiles)
    if given.bound not in quantiles:
        parser.error(f"--bound {given.bound:g} is none of the quantiles {given.quantiles}")
    for name in ("least_samples", "longest_pause", "max_age", "threads", "rows_per_second", "peer_timeout"):
        if not getattr(given, name) > 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0")
    return TrainerSettings(
        data=given.data,
        models=given.models,
        listen=tuple(given.listen or ["127.0.0.1:8010"]),
        http=given.http,
        status_http=given.status_http,
        serve_peers=given.serve_peers,
        archive=given.archive,
        peers=tuple(given.peer),
        follow=given.follow,
        quantiles=quantiles,
        bound=given.bound,
        least_samples=given.least_samples,
        longest_pause_s=given.longest_pause,
        max_age_s=given.max_age,
        threads=given.threads,
        rows_per_second=given.rows_per_second,
        peer_timeout_s=given.peer_timeout,
        log_level=given.log_level,
    )


def _quantiles(parser: argparse.ArgumentParser, text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(each) for each in text.split(","))
    except ValueError:
        parser.error(f"--quantiles {text!r}: numbers separated by commas, e.g. {_DEFAULT_QUANTILES}")
    ascending = sorted(set(found)) == list(found)
    if not ascending or not all(0 < each < 1 for each in found) or len(found) > MAX_QUANTILES:
        parser.error(f"--quantiles {text!r}: ascending, within (0, 1), at most {MAX_QUANTILES}")
    if not any(abs(each - 0.5) < 0.2 for each in found):
        parser.error(f"--quantiles {text!r}: one must be near 0.5, which stands for the expected latency")
    return found
