"""The command line of `headroom-predictor`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from latency_predictor.listening import add_common_flags


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorSettings:
    """What a prediction server is started with."""

    models: Path
    listen: tuple[str, ...]
    http: str
    status_http: str
    quantile: float
    log_level: str


def parse(arguments: Sequence[str]) -> PredictorSettings:
    """Return the settings of a command line; exits with status 2 for a bad one."""
    parser = argparse.ArgumentParser(
        prog="headroom-predictor", description="Predicts latencies from bundles."
    )
    add = parser.add_argument
    add("--models", type=Path, default=Path("/var/lib/headroom/models"), help="folder of bundles to follow")
    add(
        "--listen",
        action="append",
        default=None,
        help="address of the gRPC service, HOST:PORT or unix:PATH; may be repeated (127.0.0.1:8011)",
    )
    add(
        "--http",
        default="127.0.0.1:8001",
        help="HOST:PORT of metrics, health and upstream's JSON; '' for none",
    )
    add("--quantile", type=float, default=0.9, help="that upstream's JSON answers; a head of the models")
    add_common_flags(parser)
    given = parser.parse_args(arguments)
    if not 0.5 < given.quantile < 1:
        parser.error("--quantile must be above 0.5 and below 1")
    return PredictorSettings(
        models=given.models,
        listen=tuple(given.listen or ["127.0.0.1:8011"]),
        http=given.http,
        status_http=given.status_http,
        quantile=given.quantile,
        log_level=given.log_level,
    )
