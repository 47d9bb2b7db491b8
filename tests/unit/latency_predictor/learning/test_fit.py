"""Fitting: the base model finds a known rule, trees what the rule leaves out, and neither invents."""

import numpy as np
import pytest

from latency_contract.base_model import TERMS, terms
from latency_contract.schema import COLUMN, Target
from latency_predictor.learning.base_fit import fit_base
from latency_predictor.learning.fit import LEAST_SAMPLES, FitSettings, fit
from latency_predictor.learning.model import LogModel
from latency_predictor.learning.strata import Samples
from latency_samples import batch, latencies, rows

QUICK = FitSettings(rounds=40)


def samples(count: int, seed: int = 1) -> Samples:
    made = batch(count, seed=seed)
    return Samples(made.time_s, made.actual, made.matrix, np.ones(count))


def test_the_base_model_finds_the_rule_despite_outliers() -> None:
    """40 us a token of work; 20 ms a request ahead, as a count or by the pace of 12 ms; a tenth is off."""
    made = batch(600)
    seconds = made.actual[:, Target.TTFT].astype(float)
    seconds[::10] *= 10
    found = fit_base(terms(made.matrix, Target.TTFT), seconds, np.ones(600))
    by_name = dict(zip(TERMS[Target.TTFT], found, strict=True))
    assert by_name["prefill_work_tokens"] == pytest.approx(40e-6, rel=0.1)
    assert by_name["ahead_requests"] + 0.012 * by_name["waiting_by_pace"] == pytest.approx(0.020, rel=0.1)
    assert min(found) >= 0


def test_trees_learn_what_the_base_model_cannot_say() -> None:
    """A server that is three times slower when its cache is nearly full."""
    made = samples(1500)
    slow = made.matrix[:, COLUMN["kv_usage"]] > 0.8
    made.actual[slow] *= 3
    fitted = fit(made, Target.TTFT, QUICK)
    assert fitted is not None
    assert fitted.rounds > 0
    fresh = rows(400, seed=9)
    truth = latencies(fresh)[:, Target.TTFT] * np.where(fresh[:, COLUMN["kv_usage"]] > 0.8, 3, 1)
    model = LogModel(Target.TTFT, fitted.coefficients, fitted.trees, 2)
    error = np.median(np.abs(np.exp(model.raw(fresh)[0]) / truth - 1))
    assert error < 0.15


def test_equal_samples_give_an_equal_model() -> None:
    first, second = (fit(samples(200), Target.TPOT, QUICK) for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first.coefficients, first.trees) == (second.coefficients, second.trees)


def test_few_samples_give_the_base_model_alone_and_fewer_none() -> None:
    few = fit(samples(LEAST_SAMPLES), Target.TTFT, QUICK)
    assert few is not None
    assert few.rounds == 0
    model = LogModel(Target.TTFT, few.coefficients, few.trees, 2)
    fresh = rows(50, seed=4)
    np.testing.assert_array_equal(model.raw(fresh)[0], model.raw(fresh)[1])
    assert fit(samples(LEAST_SAMPLES - 1), Target.TTFT, QUICK) is None


def test_a_target_that_was_not_observed_is_not_learned() -> None:
    made = samples(100)
    made.actual[:, Target.TPOT] = np.nan
    assert fit(made, Target.TPOT, QUICK) is None
    assert fit(made, Target.E2E, QUICK) is not None


def test_any_quantiles_can_be_chosen() -> None:
    fitted = fit(samples(600), Target.TTFT, FitSettings(quantiles=(0.5, 0.75, 0.99), rounds=20))
    assert fitted is not None
    model = LogModel(Target.TTFT, fitted.coefficients, fitted.trees, 3)
    assert model.raw(rows(7)).shape == (3, 7)
    assert model.raw(rows(0)).shape == (3, 0)
