"""`headroom predictor`: what it prints, and what it says when it cannot."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from decided_picker import decided, serving
from headroom_cli.kubectl_plugin import plugin
from headroom_cli.main import main
from headroom_cli.predictor import tables
from headroom_cli.predictor.trainer_link import trainer_pods

HOST = "127.0.0.1"


def pod(name: str, born: str, *ports: str) -> dict[str, Any]:
    listed = [{"name": each, "containerPort": 9010} for each in ports]
    return {
        "metadata": {"name": name, "creationTimestamp": born},
        "spec": {"containers": [{"ports": listed}]},
    }


@pytest.fixture
def picker() -> Iterator[str]:
    """The address of the metrics port of a picker without prediction."""
    router = decided()
    with serving(router, HOST, lambda: {"router": router.state()}) as port:
        yield f"{HOST}:{port}"


@pytest.mark.parametrize("command", [main, plugin], ids=["headroom", "kubectl headroom"])
def test_a_picker_without_prediction_says_so(picker: str, capsys: Any, command: Any) -> None:
    assert command(["predictor", "status", "--address", picker]) == 0
    assert "Prediction  off" in capsys.readouterr().out
    assert command(["predictor", "status", "--address", picker, "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["prediction"]["enabled"] is False


def test_the_trainers_state_and_its_troubles_are_shown() -> None:
    prediction = {
        "enabled": True, "state": "warming", "routes": False, "reason": "warming", "errors": {},
        "gain": {"goodput": None, "latency": None}, "mode": "OptIn", "streamingMode": True, "version": "",
        "servers": 2, "serversAnswering": 1, "requests": {"predicted": 0, "warming": 7},
        "rate": {"requestsPerSecond": 3.5, "rowsPerSecond": 35.0},
        "samples": {"sent": 40, "lost": 1, "dropped": 0},
    }  # fmt: skip
    trainer = {
        "ready": True, "state": "warming", "samples": 39, "error": "", "disk_error": "no space left",
        "last_training": {"at_s": 990.0},
        "targets": {"ttft": {"recent_error": 0.2, "stratified_error": None}},
    }  # fmt: skip
    shown = tables.status("p", prediction, trainer, 1000.0)
    assert "Servers     1 of 2 answer" in shown
    assert "Requests    warming 7" in shown
    assert "Trainer     warming, 39 samples, trained 10s ago" in shown
    assert "disk error: no space left" in shown
    assert shown.splitlines()[-1].split() == ["ttft", "20%", "?"]


def test_of_several_pods_the_youngest_with_a_trainer_is_called() -> None:
    pods = [
        pod("old", "2026-01-01T00:00:00Z", "grpc-control"),
        pod("new", "2026-01-02T00:00:00Z", "grpc-control"),
        pod("other", "2026-01-03T00:00:00Z", "http-metrics"),
    ]
    assert trainer_pods(pods)[0]["metadata"]["name"] == "new"


def test_what_is_no_export_is_refused_before_anything_is_called(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "export"
    assert main(["predictor", "import", "-f", str(file), "--trainer", "127.0.0.1:1"]) == 1
    assert "cannot be read: No such file" in capsys.readouterr().err
    file.write_bytes(b"a letter")
    assert main(["predictor", "import", "-f", str(file), "--trainer", "127.0.0.1:1"]) == 1
    assert "this is no export of a trainer" in capsys.readouterr().err


def test_a_file_is_not_replaced_unasked(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "export"
    file.write_bytes(b"kept")
    assert main(["predictor", "export", "-f", str(file), "--trainer", "127.0.0.1:1"]) == 1
    assert "--force" in capsys.readouterr().err
    assert main(["predictor", "export", "--force", "-f", str(file), "--trainer", "127.0.0.1:1"]) == 1
    assert "127.0.0.1:1 does not do it" in capsys.readouterr().err
    assert file.read_bytes() == b"kept"
