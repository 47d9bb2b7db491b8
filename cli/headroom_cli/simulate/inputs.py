"""From the files and flags of the command line to what is simulated; every fault with file and line."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

from endpoint_picker import yaml_text
from endpoint_picker.config.build import build
from endpoint_picker.config.registry import Registry
from endpoint_picker.config_errors import ConfigError
from headroom_cli.simulate.failure import SimulateError
from model_server_sim.params import EngineParams
from pool_simulation.engines import DEFAULT_ENGINE, ENGINES
from pool_simulation.study.pool_file import PoolFile, PoolFileError, parse
from pool_simulation.workloads import spec
from pool_simulation.workloads.spec import WorkloadSpec
from pool_simulation.workloads.start import Prepared, prepare
from pool_simulation.workloads.traces import TraceError

_MAX_BYTES: Final = 4 * yaml_text.MAX_BYTES


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool file with what the flags add."""

    label: str
    """The file, as the user named it."""
    file: PoolFile
    engine_name: str
    engine: EngineParams
    replicas: int


def read_pool(name: str, given: argparse.Namespace, registry: Registry) -> Pool:
    """Return the pool in a file, with the engine and the replicas of the flags. Raises SimulateError."""
    text = _text(name)
    try:
        file = parse(text, registry)
    except PoolFileError as error:
        lines = [f"{name}:{line}: {says}" if line else f"{name}: {says}" for line, says in error.faults]
        raise SimulateError(*lines) from error
    engine_name = given.engine or file.engine or DEFAULT_ENGINE
    engine = ENGINES.get(engine_name)
    if engine is None:
        raise SimulateError(f"no engine preset is named {engine_name!r}; there are {', '.join(ENGINES)}")
    return Pool(name, file, engine_name, _changed(engine, given.set), given.replicas or file.replicas or 1)


def read_workload(given: argparse.Namespace) -> Prepared:
    """Return the workload of the flags; its traces were read once. Raises SimulateError."""
    if given.workload:
        if given.ttft_ms or given.tpot_ms:
            raise SimulateError(
                "--ttft-ms and --tpot-ms go with --trace; a workload file has `slo` of its own"
            )
        workload = _load(given.workload)
        folder = Path() if given.workload == "-" else Path(given.workload).parent
    else:
        slo = {"ttft_ms": given.ttft_ms, "tpot_ms": given.tpot_ms}
        trace = spec.Trace(name="trace", file=str(given.trace), slo=spec.Slo(**slo))
        workload, folder = WorkloadSpec(traces=[trace]), Path()
    try:
        return prepare(workload, folder)
    except TraceError as error:
        raise SimulateError(*error.lines()) from error


def read_profiles(given: Sequence[str], registry: Registry) -> dict[str, str]:
    """Return the configurations of NAME=FILE arguments by name. Raises SimulateError."""
    found = {}
    for each in given:
        name, equals, file = each.partition("=")
        if not (name and equals and file):
            raise SimulateError(f"--profile {each}: write NAME=FILE")
        text = _text(file)
        try:
            build(text, registry)
        except ConfigError as error:
            raise SimulateError(*_faults(file, text, error)) from error
        found[name] = text
    return found


def _load(name: str) -> WorkloadSpec:
    text = _text(name)
    try:
        return spec.load(text)
    except ConfigError as error:
        raise SimulateError(*_faults(name, text, error)) from error


def _faults(name: str, text: str, error: ConfigError) -> list[str]:
    lines = yaml_text.lines_of(text, [fault.path for fault in error.faults])
    return [
        f"{name}:{line}: {fault}" if line else f"{name}: {fault}"
        for fault, line in zip(error.faults, lines, strict=True)
    ]


def _text(name: str) -> str:
    try:
        with nullcontext(sys.stdin) if name == "-" else Path(name).open(encoding="utf-8") as file:
            text = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SimulateError(f"{name}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SimulateError(f"{name}: is not UTF-8 text") from error
    if len(text) > _MAX_BYTES:
        raise SimulateError(f"{name}: longer than {_MAX_BYTES} bytes")
    return text


def _changed(engine: EngineParams, given: Sequence[str]) -> EngineParams:
    """Return the engine with FIELD=VALUE arguments applied."""
    kinds = {each.name: each.type for each in fields(EngineParams)}
    changes: dict[str, object] = {}
    for each in given:
        name, _, text = each.partition("=")
        kind = kinds.get(name)
        if kind not in (int, float):
            numbers = [known for known, type_ in kinds.items() if type_ in (int, float)]
            raise SimulateError(f"--set {each}: write FIELD=NUMBER; fields are {', '.join(numbers)}")
        try:
            changes[name] = kind(text)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise SimulateError(f"--set {each}: {name} must be {what}") from None
    try:
        return replace(engine, **changes)  # type: ignore[arg-type]
    except ValueError as error:
        raise SimulateError(f"--set: {error}") from error
