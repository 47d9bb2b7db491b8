"""Samples in the other project's JSON (`POST /add_training_data_bulk`) as a batch of the contract. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from latency_contract.sample_wire import MAX_BATCH_ROWS, NO_VERSION, SampleBatch
from latency_contract.schema import TARGETS, Target
from latency_contract.states import Ended, Policy
from latency_contract.upstream_json import EntryError, checked, matrix_of


def batches_of(entries: Sequence[object], now: float) -> tuple[list[SampleBatch], list[str]]:
    """Return the entries that can be used, at most MAX_BATCH_ROWS a batch, and why each other one cannot.

    A target of 0 ms means that the entry has none. Entries without a timestamp are of `now`.
    """
    good: list[dict[str, float]] = []
    times: list[float] = []
    errors = []
    for index, entry in enumerate(entries):
        try:
            numbers = checked(entry, training=True)
            if not numbers["actual_ttft_ms"] and not numbers["actual_tpot_ms"]:
                raise EntryError("actual_ttft_ms, actual_tpot_ms: one must be above 0")
            times.append(_time(entry, now))
            good.append(numbers)
        except EntryError as error:
            errors.append(f"entries[{index}]: {error}")
    step = MAX_BATCH_ROWS
    made = [_batch(good[at : at + step], times[at : at + step]) for at in range(0, len(good), step)]
    return made, errors


def _batch(entries: list[dict[str, float]], times: list[float]) -> SampleBatch:
    count = len(entries)
    actual = np.full((count, len(TARGETS)), np.nan, np.float32)
    for target, name in ((Target.TTFT, "actual_ttft_ms"), (Target.TPOT, "actual_tpot_ms")):
        values = np.array([each[name] for each in entries], np.float32) / 1000
        actual[:, target] = np.where(values > 0, values, np.nan)
    return SampleBatch(
        versions=(),
        time_s=np.array(times),
        policy=np.full(count, Policy.HEURISTIC, np.uint8),
        ended=np.full(count, Ended.SERVED, np.uint8),
        version=np.full(count, NO_VERSION, np.uint8),
        actual=actual,
        predicted=np.full((count, len(TARGETS), 2), np.nan, np.float32),
        matrix=matrix_of(entries),
    )


def _time(entry: object, now: float) -> float:
    value = entry.get("timestamp") if isinstance(entry, dict) else None
    if value is None:
        return now
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError) as error:
        raise EntryError("timestamp: must be a date and time as in ISO 8601") from error
