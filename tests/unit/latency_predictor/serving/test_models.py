"""What a prediction server answers from a bundle, and which bundles it follows."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from latency_bundle import bundle, margins, published, rows_of
from latency_contract.base_model import margins as base_margins
from latency_contract.bundles import publish
from latency_contract.prediction_wire import PredictionRequest
from latency_contract.regimes import REGIMES, regimes_of
from latency_contract.schema import Target
from latency_contract.states import State
from latency_predictor.serving.follower import Follower
from latency_predictor.serving.model import ServingModel, UnknownQuantileError, serving_model, warming

ROWS = rows_of(50, seed=9)
BOTH = (Target.TTFT, Target.TPOT)


def test_seconds_are_base_model_and_trees_for_each_head() -> None:
    made = bundle()
    found = serving_model(made, None).predict(PredictionRequest(BOTH, (0.5, 0.9), ROWS))
    for at, target in enumerate(BOTH):
        raw = margins(made.trees[target], ROWS) + base_margins(
            ROWS, target, made.manifest.models[target].coefficients
        )
        expected = np.exp(np.maximum.accumulate(np.clip(raw, np.log(1e-4), np.log(21_600)), axis=0))
        np.testing.assert_allclose(found.seconds[at], expected, rtol=1e-4)
    assert (found.seconds[:, 1] >= found.seconds[:, 0]).all()
    assert (found.state, found.version) == (State.TRAINED, made.manifest.version)


def test_a_target_without_a_model_is_unknown() -> None:
    model = serving_model(bundle(targets=(Target.TTFT,)), None)
    found = model.predict(PredictionRequest(BOTH, (0.9,), ROWS))
    assert np.isfinite(found.seconds[0]).all()
    assert np.isnan(found.seconds[1]).all()


def test_rows_of_a_degraded_regime_are_marked() -> None:
    degraded = tuple(regime == 2 for regime in range(REGIMES))
    found = serving_model(bundle(degraded=degraded), None).predict(PredictionRequest(BOTH, (0.5,), ROWS))
    np.testing.assert_array_equal(found.untrusted == 1, regimes_of(ROWS) == 2)


def test_a_quantile_that_the_model_does_not_have_is_an_error() -> None:
    with pytest.raises(UnknownQuantileError, match=r"0\.5, 0\.9"):
        serving_model(bundle(), None).predict(PredictionRequest(BOTH, (0.5, 0.99), ROWS))


def test_a_server_without_a_bundle_is_warming() -> None:
    found = warming(PredictionRequest(BOTH, (0.5,), ROWS))
    assert found.state is State.WARMING
    assert np.isnan(found.seconds).all()


def test_a_bundle_with_the_same_trees_keeps_them() -> None:
    first = serving_model(bundle(1), None)
    second = serving_model(bundle(2, state=State.DEGRADED), first)
    assert second.trees[Target.TTFT] is first.trees[Target.TTFT]
    assert second.manifest.state is State.DEGRADED


class Following:
    def __init__(self, folder: Path) -> None:
        self.used: list[str] = []
        self.follower = Follower(folder, self.use)

    def use(self, model: ServingModel) -> None:
        self.used.append(model.manifest.version)

    def look(self) -> list[str]:
        asyncio.run(self.follower.look())
        return self.used


def test_the_newest_bundle_is_used_once(tmp_path: Path) -> None:
    following = Following(tmp_path)
    assert following.look() == []
    first = published(tmp_path, 1)
    assert following.look() == [first]
    assert following.look() == [first]
    second = published(tmp_path, 2)
    assert following.look() == [first, second]


def test_a_rollback_is_followed(tmp_path: Path) -> None:
    following = Following(tmp_path)
    first, second = published(tmp_path, 1), published(tmp_path, 2)
    following.look()
    for file in (tmp_path / second).iterdir():
        file.unlink()
    (tmp_path / second).rmdir()
    assert following.look() == [second, first]


def test_a_corrupt_bundle_is_reported_and_the_one_before_stays(tmp_path: Path) -> None:
    following = Following(tmp_path)
    first = published(tmp_path, 1)
    following.look()
    second = published(tmp_path, 2, seed=2)
    model = tmp_path / second / "ttft.ubj"
    model.write_bytes(model.read_bytes()[:-10] + b"corruption")
    assert following.look() == [first]
    assert "checksum" in following.follower.error
    third = published(tmp_path, 3)
    assert following.look() == [first, third]
    assert following.follower.error == ""


def test_a_starting_server_takes_the_newest_bundle_that_can_be_used(tmp_path: Path) -> None:
    first = published(tmp_path, 1)
    second = published(tmp_path, 2, seed=2)
    (tmp_path / second / "manifest.json").write_text("{")
    following = Following(tmp_path)
    assert following.look() == [first]
    assert following.follower.failures == 1


def test_another_schema_is_refused(tmp_path: Path) -> None:
    following = Following(tmp_path)
    made = bundle(1)
    publish(tmp_path, made)
    manifest = tmp_path / made.manifest.version / "manifest.json"
    manifest.write_text(manifest.read_text().replace(made.manifest.schema, "00" * 8))
    assert following.look() == []
    assert "schema" in following.follower.error.lower()
