"""Which samples become labels: hostile values, censored requests and wrong clocks."""

import dataclasses

import numpy as np

from latency_contract.sample_wire import SampleBatch
from latency_contract.schema import COLUMN, Target
from latency_contract.states import Ended
from latency_predictor.learning.intake import Counts, sift
from latency_samples import START_S, batch


def changed(made: SampleBatch, **columns: object) -> SampleBatch:
    return dataclasses.replace(made, **columns)  # type: ignore[arg-type]


def test_good_rows_stay() -> None:
    made = batch(5)
    good, counts = sift(made, START_S)
    assert counts == Counts(accepted=5)
    np.testing.assert_array_equal(good.matrix, made.matrix)


def test_hostile_values_are_counted_and_left_out() -> None:
    made = batch(8)
    matrix, actual, time_s = made.matrix.copy(), made.actual.copy(), made.time_s.copy()
    matrix[0, COLUMN["kv_usage"]] = 7.0
    matrix[1, COLUMN["input_tokens"]] = np.nan
    matrix[2, COLUMN["waiting_requests"]] = -1
    actual[3, Target.TTFT] = -0.5
    actual[4, Target.TPOT] = np.inf
    actual[5, Target.TTFT] = 2 * actual[5, Target.E2E]
    time_s[6] = np.nan
    good, counts = sift(changed(made, matrix=matrix, actual=actual, time_s=time_s), START_S)
    assert counts == Counts(accepted=1, rejected=7)
    assert good.time_s.tolist() == [made.time_s[7]]


def test_derived_features_of_a_sender_are_not_believed() -> None:
    made = batch(1, input_tokens=1000, prefix_hit=0.5)
    matrix = made.matrix.copy()
    matrix[0, COLUMN["uncached_tokens"]] = 7
    good, _ = sift(changed(made, matrix=matrix), START_S)
    assert good.matrix[0, COLUMN["uncached_tokens"]] == 500


def test_requests_that_did_not_end_well_give_no_labels() -> None:
    ended = np.array([Ended.SERVED, Ended.FAILED, Ended.ABORTED, Ended.TIMED_OUT, Ended.REFUSED], np.uint8)
    good, counts = sift(changed(batch(5), ended=ended), START_S)
    assert counts == Counts(accepted=1, censored=4)
    assert len(good) == 1


def test_a_row_without_any_target_or_with_an_unknown_code_is_rejected() -> None:
    made = batch(3)
    actual = made.actual.copy()
    actual[0] = np.nan
    ended = made.ended.copy()
    ended[1] = 99
    _, counts = sift(changed(made, actual=actual, ended=ended), START_S)
    assert counts == Counts(accepted=1, rejected=2)


def test_clocks_that_differ() -> None:
    """A picker's clock ahead of the trainer's: receipt counts. One that is days behind: refused."""
    made = batch(4)
    time_s = np.array([START_S, START_S + 59, START_S + 3600, START_S - 2 * 86_400])
    good, counts = sift(changed(made, time_s=time_s), START_S)
    assert counts == Counts(accepted=3, skewed=1, stale=1)
    assert good.time_s.tolist() == [START_S, START_S + 59, START_S]


def test_predictions_that_are_no_latencies_count_as_none() -> None:
    made = batch(2)
    predicted = np.full((2, 3, 2), 0.5, np.float32)
    predicted[0, Target.TTFT, 1] = -1
    good, _ = sift(changed(made, predicted=predicted), START_S)
    assert np.isnan(good.predicted[0, Target.TTFT]).all()
    assert (good.predicted[1] == 0.5).all()
