"""A learner from its first sample: states, triggers, drift, bundles, seeds."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from latency_contract.bundles import Bundle
from latency_contract.regimes import REGIMES, regimes_of
from latency_contract.sample_wire import COLUMNS, SampleBatch
from latency_contract.schema import Role, Target
from latency_contract.states import Ended, State
from latency_predictor.learning.fit import FitSettings
from latency_predictor.learning.learner import Learner, LearnerSettings, held_out
from latency_samples import START_S, batch, latencies, rows

SETTINGS = LearnerSettings(fit=FitSettings(rounds=10, depth=3), least_pause_s=8.0)


def predicted(learner: Learner, matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what the learner's models answer now: float32[rows, targets, 2]."""
    found = np.full((len(matrix), 3, 2), np.nan, np.float32)
    for target in learner.targets:
        model, offsets = learner.serving(target)
        found[:, target] = model.seconds(matrix, offsets).T
    return found


def live(
    learner: Learner,
    count: int,
    at_s: float,
    seed: int,
    slowness: float = 1.0,
    states: list[State] | None = None,
    targets: tuple[Target, ...] = tuple(Target),
    **columns: Any,
) -> float:
    """Serve requests in tens, as a picker would; return the time after them."""
    for turn in range(count // 10):
        matrix = rows(10, seed * 1000 + turn, **columns)
        made = batch(
            0,
            matrix=matrix,
            predicted=predicted(learner, matrix),
            at_s=at_s,
            slowness=slowness,
            seed=seed + turn,
        )
        for target in set(Target) - set(targets):
            made.actual[:, target] = np.nan
        learner.take(made, at_s + 1)
        at_s += 1
        if learner.due(at_s):
            learner.train(at_s)
        learner.calibrate()
        if states is not None:
            states.append(learner.state())
    return at_s


@pytest.fixture(scope="module")
def trained() -> tuple[Learner, float]:
    learner = Learner(SETTINGS)
    return learner, live(learner, 600, START_S, 1)


def test_a_learner_without_samples_is_warming() -> None:
    learner = Learner(SETTINGS)
    assert learner.state() is State.WARMING
    assert not learner.state().routes
    assert learner.due(START_S) == ""
    learner.take(batch(99), START_S)
    assert learner.due(START_S) == ""
    assert learner.targets == ()


def test_after_its_samples_each_target_has_a_model_of_its_own(trained: Any) -> None:
    learner, _ = trained
    assert learner.state() is State.TRAINED
    assert learner.targets == (Target.TTFT, Target.TPOT, Target.E2E)
    fresh = rows(300, seed=77)
    truth = latencies(fresh)
    answer = predicted(learner, fresh)
    for target in Target:
        assert np.median(np.abs(answer[:, target, 0] / truth[:, target] - 1)) < 0.2
        assert 0.8 < (truth[:, target] <= answer[:, target, 1]).mean() < 0.98


def test_a_pool_whose_clients_do_not_stream_has_a_model_of_e2e_alone() -> None:
    learner = Learner(SETTINGS)
    made = batch(200)
    made.actual[:, [Target.TTFT, Target.TPOT]] = np.nan
    learner.take(made, START_S)
    assert learner.train(START_S).promoted == (Target.E2E,)
    assert learner.state() is State.TRAINED
    assert tuple(learner.bundle(1_750_000_000_000).manifest.models) == (Target.E2E,)


def test_prefill_and_decode_rows_teach_a_target_each() -> None:
    """Of a divided request the prefill endpoint's row has the TTFT, the decode endpoint's the TPOT."""
    learner = Learner(SETTINGS)
    prefill, decode = batch(200, role=Role.PREFILL), batch(200, seed=2, role=Role.DECODE)
    prefill.actual[:, [Target.TPOT, Target.E2E]] = np.nan
    decode.actual[:, [Target.TTFT, Target.E2E]] = np.nan
    for each in (prefill, decode):
        learner.take(each, START_S)
    assert learner.train(START_S).promoted == (Target.TTFT, Target.TPOT)
    fresh = rows(300, seed=77, role=Role.PREFILL)
    ttft = predicted(learner, fresh)[:, Target.TTFT, 0]
    assert np.median(np.abs(ttft / latencies(fresh)[:, Target.TTFT] - 1)) < 0.2
    fresh = rows(300, seed=78, role=Role.DECODE)
    tpot = predicted(learner, fresh)[:, Target.TPOT, 0]
    assert np.median(np.abs(tpot / latencies(fresh)[:, Target.TPOT] - 1)) < 0.2


def test_censored_requests_teach_nothing() -> None:
    learner = Learner(SETTINGS)
    made = batch(500)
    counts = learner.take(dataclasses.replace(made, ended=np.full(500, Ended.ABORTED, np.uint8)), START_S)
    assert counts.censored == 500
    assert len(learner) == 0
    assert learner.due(START_S) == ""


def test_what_begins_a_training() -> None:
    learner = Learner(dataclasses.replace(SETTINGS, least_pause_s=5.0, longest_pause_s=100.0))
    learner.take(batch(200), START_S)
    assert learner.due(START_S) == "first"
    learner.train(START_S)
    assert learner.due(START_S + 6) == ""
    learner.take(batch(10, seed=2), START_S)
    assert learner.due(START_S + 6) == ""
    assert learner.due(START_S + 100) == "time"
    learner.take(batch(50, seed=3), START_S)
    assert learner.due(START_S + 4) == ""
    assert learner.due(START_S + 6) == "new samples"


def test_samples_are_held_out_alike_after_a_restart() -> None:
    made = batch(2000)
    held = held_out(made)
    assert 0.07 < held.mean() < 0.13
    np.testing.assert_array_equal(held, held_out(made))
    half = dataclasses.replace(
        made, time_s=made.time_s[1000:], matrix=made.matrix[1000:], actual=made.actual[1000:]
    )
    np.testing.assert_array_equal(held[1000:], held_out(half))


def test_a_tenth_of_a_burst_of_equal_samples_is_held_out() -> None:
    one = batch(1)
    columns = {name: np.repeat(getattr(one, name), 2000, axis=0) for name, _, _ in COLUMNS}
    held = held_out(SampleBatch((), **columns))
    assert 0.07 < held.mean() < 0.13


def test_a_training_that_had_nothing_to_fit_is_not_the_first() -> None:
    learner = Learner(dataclasses.replace(SETTINGS, least_samples=10))
    learner.take(batch(20), START_S)
    assert learner.due(START_S) == "first"
    assert learner.train(START_S).promoted == ()
    assert learner.due(START_S + 9) == ""
    learner.take(batch(1, seed=4), START_S + 9)
    assert learner.due(START_S + 7) == ""
    assert learner.due(START_S + 9) == "first"


def test_a_slower_engine_is_out_of_routing_within_200_and_learned_within_2000() -> None:
    learner = Learner(SETTINGS)
    one_kind: dict[str, Any] = {
        "input_tokens": 500,
        "waiting_requests": 0,
        "prefix_hit": 0.0,
        "targets": (Target.TTFT,),
    }
    now = live(learner, 300, START_S, 1, **one_kind)
    assert learner.state() is State.TRAINED
    states: list[State] = []
    live(learner, 600, now, 2, slowness=2.0, states=states, **one_kind)
    del one_kind["targets"]
    assert State.DEGRADED in states[:20]
    assert states[-1] is State.TRAINED
    fresh = rows(300, seed=78, **one_kind)
    error = np.abs(predicted(learner, fresh)[:, Target.TTFT, 0] / latencies(fresh, 2.0)[:, Target.TTFT] - 1)
    assert np.median(error) < 0.2


def test_a_bundle_says_how_the_models_did_and_seeds_another_learner(trained: Any) -> None:
    learner, _ = trained
    bundle = learner.bundle(1_750_000_000_000)
    model = bundle.manifest.models[Target.TTFT]
    assert bundle.manifest.state is State.TRAINED
    assert model.samples >= 80
    assert model.stratified_error is not None
    assert 0 < model.stratified_error < 0.3
    assert model.degraded == (False,) * REGIMES
    other = Learner(SETTINGS)
    other.seed(bundle, own=False)
    assert other.state() is State.SEEDED
    assert other.state().routes
    fresh = rows(20, seed=5)
    np.testing.assert_array_equal(predicted(other, fresh), predicted(learner, fresh))
    own = Learner(SETTINGS)
    own.seed(bundle, own=True)
    assert own.state() is State.TRAINED


def test_two_bundles_of_one_learner_have_names_of_their_own(trained: Any) -> None:
    learner, _ = trained
    names = {learner.bundle(1_750_000_000_000 + each).manifest.version for each in range(5)}
    assert len(names) == 5


def test_a_seed_with_other_quantiles_is_left_out(trained: Any) -> None:
    learner, _ = trained
    bundle: Bundle = learner.bundle(1)
    other = Learner(LearnerSettings(fit=FitSettings(quantiles=(0.5, 0.95))))
    other.seed(bundle, own=False)
    assert other.state() is State.WARMING


def test_flush_forgets_samples_and_keeps_the_models() -> None:
    learner = Learner(SETTINGS)
    learner.take(batch(150), START_S)
    learner.train(START_S)
    assert learner.flush() == 150
    assert len(learner) == 0
    assert learner.state() is State.TRAINED


def test_regimes_with_errors_are_named_and_others_are_not() -> None:
    learner = Learner(SETTINGS)
    now = live(learner, 600, START_S, 1)
    now = live(learner, 150, now, 9, slowness=5.0, input_tokens=200, waiting_requests=0, prefix_hit=0.0)
    regime = int(regimes_of(rows(1, input_tokens=200, waiting_requests=0, prefix_hit=0.0))[0])
    degraded = learner.watches[Target.TTFT].degraded
    moved = learner.watches[Target.TTFT].moves
    assert degraded[regime] or moved
    assert not any(degraded[each] for each in range(REGIMES) if each != regime)
