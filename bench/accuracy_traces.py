"""The traces of `bench/accuracy.py`: simulated pools, what their picker saw at each pick, what then happened.

Every trace is made by seeds alone, without a predictor. A picker with the default scorers decides; the row of
each request is what that picker had: scraped values with their age, its own ledger, its prefix index. Outside
any base model are: requests that reach the servers past the picker, preemption where the KV cache is small,
loads of LoRA adapters, stalls of a server with heavy-tailed lengths, and heavy-tailed delays of first bytes.

Three kinds of seeds: with `TUNED` the predictor's thresholds and features were chosen, `JUDGE` is for what
is claimed, and those of replays tell the floor. `bench/accuracy_digests.json` has, for the first two, a
digest of every trace's requests and disturbances, and one of its rows. Run as a program, this writes it
anew, which is to be done only when a trace is meant to change.
"""

import argparse
import dataclasses
import hashlib
import json
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final

import numpy as np
import paired
from accuracy_pool import DecodeServer, Limited, PrefillDecode, RecordingPolicy
from accuracy_specs import SERVERS, TRACES
from numpy.typing import NDArray

from endpoint_picker.config.registry import Registry
from latency_contract.matrix import build
from latency_contract.schema import INPUT_NAMES
from pool_simulation.simulation import Simulation
from pool_simulation.workload import Workload
from pool_simulation.workloads.spec import load
from pool_simulation.workloads.start import prepare

HERE: Final = Path(__file__).resolve().parent
DIGESTS: Final = HERE / "accuracy_digests.json"
CACHE: Final = HERE.parent / ".local" / "accuracy"
#: By which thresholds and features were chosen; replays have the seeds after it.
TUNED: Final = 1000
#: Of every trace as it is measured.
JUDGE: Final = 2000
#: Grows with every change of this file that changes rows, so that none of another version is taken from disk.
VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class Rows:
    """What a trace gave, in order of the picks; times are virtual seconds."""

    inputs: NDArray[np.float32]
    """float32[n, INPUTS]."""
    actual: NDArray[np.float32]
    """float32[n, targets] seconds; NaN: not observed."""
    decided_s: NDArray[np.float64]
    ended_s: NDArray[np.float64]
    is_shifted: NDArray[np.bool_]
    """Picked after the slowdown."""

    @property
    def matrix(self) -> NDArray[np.float32]:
        """Return the rows with the derived columns."""
        columns = {name: self.inputs[:, index] for index, name in enumerate(INPUT_NAMES)}
        return build(columns, len(self.inputs))


@cache
def _registry() -> Registry:
    return Registry(paired.plugin_loaders(paired.measured_tree()))


def make(name: str, seed: int) -> tuple[Rows, str]:
    """Simulate a trace; return its rows, and a digest of its requests and disturbances."""
    trace = TRACES[name]
    duration_s = 3600.0
    model = load(f"duration_s: {duration_s:g}\nstreams:\n{trace.streams}")
    workload: Workload = prepare(model, Path()).start(seed)
    sent = hashlib.sha256()
    policy = RecordingPolicy(trace, _registry(), seed, duration_s)
    if trace.prefill_servers:
        workload = PrefillDecode(workload)
    workload = Limited(workload, trace.requests, sent)
    simulation = Simulation(
        [trace.engine] * SERVERS, workload, policy, duration_s=duration_s, seed=f"accuracy/{seed}"
    )
    for number in range(trace.prefill_servers, SERVERS) if trace.prefill_servers else ():
        simulation.servers[number] = DecodeServer(number, trace.engine, f"accuracy/{seed}")
    policy.watch(simulation)
    simulation.run()
    sent.update(policy.disturbed.digest())
    times = np.array(policy.times)
    rows = Rows(
        np.array(policy.rows, dtype=np.float32),
        np.array(policy.actual, dtype=np.float32),
        times[:, 0],
        times[:, 1],
        np.array(policy.shifted),
    )
    return rows, sent.hexdigest()[:16]


def _key(name: str) -> str:
    content = f"{VERSION} {TRACES[name]} {INPUT_NAMES} {SERVERS}"
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def rows_of(name: str, seed: int) -> tuple[Rows, str]:
    """Return a trace's rows and the digest of its requests, simulated once and kept in `.local/accuracy`."""
    path = CACHE / f"{name}-{seed}-{_key(name)}.npz"
    if path.exists():
        with np.load(path) as kept:
            columns = [kept[each.name] for each in dataclasses.fields(Rows)]
            return Rows(*columns), str(kept["digest"])
    rows, digest = make(name, seed)
    CACHE.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{random.randrange(1 << 30)}.tmp.npz")
    np.savez_compressed(unfinished, digest=np.array(digest), **_columns(rows))  # type: ignore[arg-type]
    unfinished.rename(path)
    return rows, digest


def _columns(rows: Rows) -> dict[str, NDArray[np.generic]]:
    return {each.name: getattr(rows, each.name) for each in dataclasses.fields(Rows)}


def rows_digest(rows: Rows) -> str:
    """Return a digest of rows and targets, rounded so that the last bits of a machine's libm do not
    matter."""
    digest = hashlib.sha256()
    for each in (rows.inputs, rows.actual):
        digest.update(np.round(np.nan_to_num(each, nan=-1.0).astype(np.float64), 4).tobytes())
    return digest.hexdigest()[:16]


def replay_seeds(count: int) -> list[int]:
    """Return the seeds of the first replays."""
    return [TUNED + 1 + number for number in range(count)]


def replays(name: str, count: int, jobs: int) -> list[Rows]:
    """Return `count` replays of a trace with other seeds: other arrivals, lengths, stalls and noise."""
    seeds = replay_seeds(count)
    with ProcessPoolExecutor(jobs) as pool:
        return [rows for rows, _ in pool.map(partial(rows_of, name), seeds)]


def frozen() -> dict[str, dict[str, dict[str, str]]]:
    """Return the committed digests by trace and seed."""
    text: dict[str, dict[str, dict[str, str]]] = json.loads(DIGESTS.read_text())
    return text


def main() -> None:
    """Write the digests of all traces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing; 1 when any differs")
    given = parser.parse_args()
    found: dict[str, dict[str, dict[str, str]]] = {}
    for name in TRACES:
        for seed in (TUNED, JUDGE):
            rows, digest = rows_of(name, seed)
            found.setdefault(name, {})[str(seed)] = {"requests": digest, "rows": rows_digest(rows)}
    if given.check:
        sys.exit(found != frozen())
    DIGESTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
