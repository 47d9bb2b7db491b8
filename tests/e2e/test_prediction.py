"""Prediction through the real Envoy: sidecars that learn, that are killed and revived, and that go again."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headroom_cli.demo.api import wait_for
from headroom_cli.demo.load import Load
from headroom_cli.demo.prediction import IN_FLIGHT, LEAST_SAMPLES, ask, await_trained, predicted_pool, report
from headroom_cli.demo.scenarios import LIMIT_S, LOSS_TRIES
from headroom_cli.demo.stage import Stage, is_ready
from headroom_cli.main import main
from model_server_sim.client import Result

SIDECARS = ("trainer", "predictor-0")


@pytest.fixture(scope="module")
def predicted(stage: Stage) -> Iterator[Stage]:
    """A pool with prediction and three model servers."""
    with predicted_pool(stage) as made:
        yield made


def failures(sent: list[Result]) -> list[str]:
    """Return how requests failed, with the seconds since the first began."""
    return [f"{each.start - sent[0].start:.1f} s: {each.error}" for each in sent if not each.ok]


def containers(stage: Stage) -> list[Any]:
    return list(stage.picker_pod()["status"].get("containerStatuses") or ())


def test_a_pool_learns_and_the_conditions_say_so(predicted: Stage) -> None:
    assert {each["name"] for each in containers(predicted) if each["ready"]} == {"epp", *SIDECARS}

    def warms_up() -> bool:
        return (predicted.condition("PredictorReady") or {}).get("reason") == "WarmingUp"

    wait_for("WarmingUp", warms_up, limit_s=LIMIT_S)
    with Load(predicted.proxy_url(), in_flight=IN_FLIGHT, make=ask) as load:
        await_trained(predicted)
        reason, _ = predicted.await_condition("PredictorReady", "True", limit_s=2 * LIMIT_S)
        sent = load.stop()
    assert reason == "Trained"
    assert sum(each.ok for each in sent) > LEAST_SAMPLES
    status = (predicted.api.get(predicted.path("EndpointPicker", predicted.pool)) or {})["status"]
    assert status["latencyPredictor"]["version"]


def await_replaced(stage: Stage, pod: str, container: str, killed: int) -> None:
    def replaced() -> bool:
        pids = stage.cluster.container_pids(stage.namespace, pod, container)
        return len(pids) > 1 and killed not in pids

    wait_for(f"another process of {container}", replaced, limit_s=LIMIT_S)


def killed(stage: Stage) -> list[str]:
    """Kill each sidecar's process under load; return the failures of requests."""
    pod = stage.picker_pod()["metadata"]["name"]
    with Load(stage.proxy_url(), in_flight=IN_FLIGHT, make=ask) as load:
        load.await_served(20)
        for name in SIDECARS:
            # The first is the supervisor.
            child = stage.cluster.container_pids(stage.namespace, pod, name)[1]
            os.kill(child, signal.SIGKILL)
            await_replaced(stage, pod, name, child)
        load.await_served(20)
        wait_for("predictions again", lambda: report(stage)["serversAnswering"] == 1, limit_s=LIMIT_S)
        return failures(load.stop())


def test_killed_sidecars_cost_no_request_and_come_back(predicted: Stage) -> None:
    # A machine that is too busy fails requests for other reasons: then another time shows none.
    lost = [killed(predicted)]
    while lost[-1] and len(lost) < LOSS_TRIES:
        lost.append(killed(predicted))
    assert lost[-1] == []
    assert [each["restartCount"] for each in containers(predicted)] == [0, 0, 0]


def test_what_was_learned_moves_by_the_command_line(
    predicted: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(predicted.cluster.kubeconfig))
    export = tmp_path / "pool.export"
    assert main(["predictor", "export", predicted.pool, "-f", str(export)]) == 0
    assert main(["predictor", "flush", predicted.pool]) == 0
    capsys.readouterr()
    assert main(["predictor", "import", predicted.pool, "-f", str(export), "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["bundles"] == 1
    assert answer["samples"] > 0
    assert main(["predictor", "status", predicted.pool]) == 0
    shown = capsys.readouterr().out
    assert "Servers     1 of 1 answer" in shown
    assert "Trainer     " in shown


def test_a_rollout_keeps_what_was_learned(
    predicted: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(predicted.cluster.kubeconfig))

    def trainers() -> dict[str, Any]:
        capsys.readouterr()
        assert main(["predictor", "status", predicted.pool, "-o", "json"]) == 0
        return {each["picker"]: each["trainer"] for each in json.loads(capsys.readouterr().out)}

    ((old, before),) = trainers().items()
    assert before["samples"] > 0
    predicted.kubectl("rollout", "restart", f"deployment/{predicted.picker()}")

    def replaced() -> str | None:
        pods = [pod for pod in predicted.pods(f"app={predicted.picker()}") if is_ready(pod)]
        names = [pod["metadata"]["name"] for pod in pods]
        return next((name for name in names if name != old), None)

    new, _ = wait_for("a ready pod in place of the older one", replaced, limit_s=3 * LIMIT_S)
    after = trainers()[new]
    # Before its pod was ready the trainer had fetched them.
    assert after["samples"] == before["samples"]
    assert after["state"] in {"seeded", "trained"}


def test_switched_off_nothing_is_left(predicted: Stage) -> None:
    path = predicted.path("EndpointPicker", predicted.pool)
    predicted.api.patch(path, {"spec": {"latencyPredictor": {"enabled": False}}})

    def is_alone() -> bool:
        return [each["name"] for each in containers(predicted)] == ["epp"]

    wait_for("a pod with the picker alone", is_alone, limit_s=3 * LIMIT_S)
    predicted.await_condition("PickerReady", "True", limit_s=2 * LIMIT_S)
    assert predicted.condition("PredictorReady") is None
    with Load(predicted.proxy_url(), in_flight=2) as load:
        load.await_served(10)
