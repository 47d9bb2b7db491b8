"""Plays a trace to a learner in order of time: each request is predicted before its outcome is known.

What a request is predicted by is what a prediction server would have then: a bundle is used `PUBLISH_S` after
the learner decided on it, and outcomes reach the learner when their requests end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from accuracy_traces import Rows
from numpy.typing import NDArray

from latency_contract import bundles
from latency_contract.regimes import regimes_of
from latency_contract.sample_wire import SampleBatch
from latency_contract.schema import Target
from latency_contract.states import State
from latency_predictor.learning.learner import Learner, LearnerSettings
from latency_predictor.learning.model import LogModel

#: Virtual seconds from one look at the learner to the next; a bundle is published at the next one.
PUBLISH_S: Final = 1.0
#: Targets that are measured.
MEASURED: Final = (Target.TTFT, Target.TPOT)
#: The clock of the learner at a trace's begin, seconds since the epoch.
EPOCH_S: Final = 1.7e9


@dataclass(frozen=True, slots=True)
class Played:
    """What was predicted for each row."""

    predicted: NDArray[np.float32]
    """float32[rows, targets, 2] seconds: median and upper bound; NaN before the first model."""
    routes: NDArray[np.bool_]
    """Whether prediction would have routed the row."""
    trainings: int
    promotions: int


def play(
    rows: Rows,
    settings: LearnerSettings,
    change: Callable[[NDArray[np.float32]], None] | None = None,
    models: Path | None = None,
) -> Played:
    """Return the predictions of a learner that starts empty.

    `change` alters matrices in place (ablation). The last bundle is published in the folder `models`.
    """
    learner = Learner(settings)
    matrix = rows.matrix
    if change is not None:
        change(matrix)
    regimes = regimes_of(matrix)
    count = len(matrix)
    actual = rows.actual.copy()
    actual[:, Target.E2E] = np.nan
    predicted = np.full((count, 3, 2), np.nan, np.float32)
    routes = np.zeros(count, np.bool_)
    by_end = np.argsort(rows.ended_s, kind="stable")
    ends = rows.ended_s[by_end]
    serving: dict[Target, tuple[LogModel, NDArray[np.float32]]] = {}
    degraded = np.zeros(6, np.bool_)
    state, trainings, promotions = State.WARMING, 0, 0
    median, bound = 0, settings.bound
    now, done, ended = 0.0, 0, 0
    while done < count:
        now += PUBLISH_S
        until = int(np.searchsorted(rows.decided_s, now))
        part = slice(done, until)
        if until > done:
            for target, (model, offsets) in serving.items():
                seconds = model.seconds(matrix[part], offsets)
                predicted[part, target] = seconds[[median, bound]].T
            routes[part] = state.routes & ~degraded[regimes[part]]
            done = until
        over = int(np.searchsorted(ends, now))
        chosen = by_end[ended:over]
        ended = over
        chosen = chosen[np.isfinite(actual[chosen]).any(axis=1)]
        if len(chosen):
            learner.take(_batch(rows, actual, predicted, matrix, chosen), EPOCH_S + now)
        if learner.due(EPOCH_S + now):
            trainings += 1
            promotions += len(learner.train(EPOCH_S + now).promoted)
        learner.calibrate()
        state = learner.state()
        for target in learner.targets:
            serving[target] = learner.serving(target)
        degraded = np.zeros(6, np.bool_)
        for target in learner.targets:
            degraded |= np.array(learner.watches[target].degraded)
    if models is not None:
        bundles.publish(models, learner.bundle(int((EPOCH_S + now) * 1000)))
    return Played(predicted, routes, trainings, promotions)


def _batch(
    rows: Rows,
    actual: NDArray[np.float32],
    predicted: NDArray[np.float32],
    matrix: NDArray[np.float32],
    chosen: NDArray[np.intp],
) -> SampleBatch:
    count = len(chosen)
    zeros = np.zeros(count, np.uint8)
    return SampleBatch(
        ("",),
        EPOCH_S + rows.decided_s[chosen],
        zeros,
        zeros,
        zeros,
        actual[chosen],
        predicted[chosen],
        matrix[chosen],
    )
