"""The process that learns, on a virtual clock: what it publishes, and what damage to files costs."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from latency_contract import bundles
from latency_contract.bundles import load, load_newest, newest_version, versions
from latency_contract.sample_wire import encode_batch
from latency_contract.states import State
from latency_predictor.training.frames import Kind
from latency_predictor.training.journal import Journal, numbers
from latency_predictor.training.learning_process import LearningProcess, Work
from latency_samples import START_S, batch


class Clock:
    def __init__(self) -> None:
        self.now = START_S

    def __call__(self) -> float:
        return self.now


Made = tuple[LearningProcess, Clock, dict[str, Any]]


@pytest.fixture
def make(tmp_path: Path) -> Callable[[], Made]:
    def start() -> Made:
        clock = Clock()
        status: dict[str, Any] = {}
        work = Work(
            data=str(tmp_path / "samples"),
            models=str(tmp_path / "models"),
            below=1_000_000,
            quantiles=(0.5, 0.9),
            bound=0.9,
            least_samples=100,
            longest_pause_s=1800.0,
            max_age_s=1e6,
            threads=1,
        )
        process = LearningProcess(work, clock, status.update)
        process.start()
        return process, clock, status

    return start


def feed(made: Made, count: int, seed: int = 1) -> None:
    process, clock, _ = made
    process.handle(Kind.BATCH, encode_batch(batch(count, seed=seed, at_s=clock.now)))
    clock.now += 10
    process.look()


def test_enough_samples_become_a_bundle(make: Any, tmp_path: Path) -> None:
    made = make()
    feed(made, 50)
    assert newest_version(tmp_path / "models") is None
    assert made[2]["state"] == "warming"
    feed(made, 60, seed=2)
    bundle, errors = load_newest(tmp_path / "models")
    assert errors == []
    assert bundle is not None
    assert bundle.manifest.state is State.TRAINED
    assert bundle.manifest.parent == ""
    assert made[2]["version"] == bundle.manifest.version
    assert made[2]["last_training"]["reason"] == "first"
    assert made[2]["samples"] == 110


def test_calibration_is_published_with_the_same_trees(make: Any, tmp_path: Path) -> None:
    made = make()
    feed(made, 150)
    first, _ = load_newest(tmp_path / "models")
    process, clock, _ = made
    process.handle(Kind.BATCH, encode_batch(batch(25, seed=3, slowness=1.5, at_s=clock.now)))
    clock.now += 0.5
    process.learner.settings = process.learner.settings.__class__(least_pause_s=1e9)
    clock.now += 10
    process.look()
    second, _ = load_newest(tmp_path / "models")
    assert first is not None
    assert second is not None
    assert second.manifest.version > first.manifest.version
    assert second.manifest.parent == first.manifest.version
    assert second.trees == first.trees


def test_a_restart_goes_on_with_samples_and_models(make: Any, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "samples")
    encoded = encode_batch(batch(150))
    journal.append(encoded)
    made = make()
    assert made[2]["samples"] == 150
    made[0].look()
    version = newest_version(tmp_path / "models")
    again = make()
    assert again[2]["version"] == version
    assert again[2]["state"] == "trained"
    assert again[2]["samples"] == 150


def test_a_corrupt_bundle_is_passed_over_and_named(make: Any, tmp_path: Path) -> None:
    made = make()
    feed(made, 150)
    feed(made, 150, seed=5)
    good, bad = versions(tmp_path / "models")[-2:]
    path = tmp_path / "models" / bad / "ttft.ubj"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    again = make()
    assert again[2]["version"] == good
    assert bad in again[2]["error"]
    feed(again, 150, seed=6)
    newest = newest_version(tmp_path / "models")
    assert newest is not None
    assert newest > bad
    assert load(tmp_path / "models", newest).manifest.state is State.TRAINED


def test_a_full_disk_keeps_the_old_bundle_and_is_said_until_there_is_room(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make()
    feed(made, 150)
    before = newest_version(tmp_path / "models")
    write = bundles._write

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bundles, "_write", full)
    feed(made, 150, seed=2)
    assert newest_version(tmp_path / "models") == before
    assert "No space left on device" in made[2]["error"]
    monkeypatch.setattr(bundles, "_write", write)
    feed(made, 20, seed=3)
    assert newest_version(tmp_path / "models") != before
    assert made[2]["error"] == ""


def test_a_clock_that_was_set_back_still_gives_newer_versions(make: Any, tmp_path: Path) -> None:
    made = make()
    feed(made, 150)
    made[1].now -= 3600
    feed(made, 200, seed=2)
    feed(made, 200, seed=3)
    listed = versions(tmp_path / "models")
    assert len(listed) >= 2
    assert made[2]["version"] == listed[-1]


def test_rollback_serves_the_trees_before(make: Any, tmp_path: Path) -> None:
    made = make()
    feed(made, 150)
    first, _ = load_newest(tmp_path / "models")
    feed(made, 300, seed=2)
    made[0].handle(Kind.ROLLBACK, b"")
    now, _ = load_newest(tmp_path / "models")
    assert first is not None
    assert now is not None
    assert now.trees == first.trees
    assert now.manifest.version > first.manifest.version


def test_rollback_without_an_older_bundle_says_so(make: Any) -> None:
    made = make()
    feed(made, 150)
    made[0].handle(Kind.ROLLBACK, b"")
    assert "there is no bundle before" in made[2]["error"]


def test_hostile_frames_change_nothing(make: Any) -> None:
    made = make()
    made[0].handle(Kind.BATCH, b"HPS1 is not enough")
    made[0].handle(Kind.SEED, b"../../etc")
    made[0].handle(Kind.SEED, b"\xff")
    made[0].look()
    assert made[2]["samples"] == 0
    assert made[2]["state"] == "warming"


def test_many_journal_files_become_one(make: Any, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "samples")
    for seed in range(5):
        journal.append(encode_batch(batch(30, seed=seed)))
        journal.rotate()
    made = make()
    assert made[2]["samples"] == 150
    assert len(numbers(tmp_path / "samples")) == 1
    assert make()[2]["samples"] == 150
