"""The demo's own judgement: figures against goals, the audit log, the command line."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headroom_cli.demo import requests as demo_requests
from headroom_cli.demo.api import wait_for
from headroom_cli.demo.audit import AuditLog
from headroom_cli.demo.failure import DemoError
from headroom_cli.demo.stage import Measurement
from headroom_cli.main import main


@pytest.mark.parametrize(
    ("value", "unit", "goal", "kept"),
    [
        pytest.param(14.9, "s", 5.0, True, id="a time has the slack"),
        pytest.param(15.1, "s", 5.0, False, id="a time beyond the slack"),
        pytest.param(1, "requests", 0.0, False, id="a count has none"),
        pytest.param(18, "requests", 18.0, True, id="a count at its goal"),
        pytest.param(1e9, "s", None, True, id="a figure without a goal"),
    ],
)
def test_figures_are_held_to_their_goals(value: float, unit: str, goal: float | None, kept: bool) -> None:
    assert Measurement("figure", value, unit, goal).within(3.0) is kept


def entry(user: str, verb: str, resource: str, stage: str = "ResponseComplete") -> str:
    told = {
        "stage": stage,
        "verb": verb,
        "user": {"username": user},
        "objectRef": {"resource": resource, "name": "x"},
        "responseStatus": {"code": 200},
    }
    return json.dumps(told) + "\n"


def test_the_audit_log_tells_what_a_user_wrote_since_the_mark(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    file.write_text(entry("operator", "patch", "services"))
    log = AuditLog(file)
    with file.open("a") as more:
        more.write(entry("operator", "list", "pods"))
        more.write(entry("operator", "create", "selfsubjectaccessreviews"))
        more.write(entry("somebody", "delete", "services"))
        more.write(entry("operator", "delete", "configmaps", stage="RequestReceived"))
        more.write(entry("operator", "patch", "deployments"))
        more.write(entry("operator", "patch", "services").rstrip("\n"))  # still being written
    assert [call.resource for call in log.writes("operator")] == ["deployments"]
    assert len(list(log.calls("operator"))) == 3


def test_waiting_in_vain_names_what_was_awaited() -> None:
    with pytest.raises(DemoError, match="the moon"):
        wait_for("the moon", lambda: None, limit_s=0.0)


def test_the_demo_says_where_it_must_be_run_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "up"]) == 1
    assert "root of the source tree" in capsys.readouterr().err


def test_each_request_of_the_table_has_its_decision(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def page(_address: str, path: str) -> dict[str, Any]:
        number = path.removeprefix("/debug/explain?request_id=demo-")
        score = {"raw": 0.5, "weighted": 1.0 + int(number)}
        scored = [{"endpoint": "e:1", "scores": {"queue": score}}, {"endpoint": "f:1", "scores": {}}]
        decision = {"endpoint": "e:1", "profiles": [{"scored": scored}], "prefixHit": 0.0, "candidates": 3}
        return {"decisions": [decision] if int(number) < len(asked) else []}

    def ask(_send: object) -> SimpleNamespace:
        asked.append("")
        return SimpleNamespace(ok=True, status=200, served_by="vllm-0", error="")

    monkeypatch.setattr(demo_requests, "picker_page", page)
    monkeypatch.setattr(demo_requests, "Once", lambda _url: ask)
    stage: Any = SimpleNamespace(
        proxy_url=lambda: "http://proxy", picker_pod=lambda: {"status": {"podIP": "127.0.0.1"}}
    )
    demo_requests.show_requests(stage)
    shown = capsys.readouterr()
    table = (shown.out + shown.err).splitlines()
    for number in range(len(demo_requests.REQUESTS)):
        assert len([line for line in table if f"queue {number + 1}.00; prefix hit 0%" in line]) == 1


def test_ending_a_demo_that_is_not_up_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "down", "--dir", str(tmp_path / "none")]) == 0
    assert "down" in capsys.readouterr().out
