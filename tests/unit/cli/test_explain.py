"""`headroom explain`: what it prints of a picker's page, and what it says when there is none."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from decided_picker import decided, serving
from headroom_cli.explain import tables
from headroom_cli.kubectl_plugin import plugin
from headroom_cli.main import main
from headroom_cli.text_table import table

HOST = "127.0.0.1"


@pytest.fixture
def picker() -> Iterator[str]:
    """The address of the metrics port of a picker with two decisions."""
    with serving(decided(), HOST) as port:
        yield f"{HOST}:{port}"


@pytest.mark.parametrize("command", [main, plugin], ids=["headroom", "kubectl headroom"])
def test_one_request_is_explained(
    picker: str, capsys: pytest.CaptureFixture[str], command: partial[int]
) -> None:
    assert command(["explain", "--address", picker, "good"]) == 0
    printed = capsys.readouterr().out
    assert "Endpoint    10.0.0.0:8000\n" in printed
    lines = printed.splitlines()
    (head,) = [line for line in lines if line.startswith("ENDPOINT")]
    assert head.split()[:9] == [
        "ENDPOINT",
        "NAME",
        "CHOICE",
        "WAITING",
        "UNSEEN",
        "RUNNING",
        "KV",
        "USED",
        "AGE",
    ]
    assert "queue-scorer x2" in head
    first, second = lines[lines.index(head) + 1 :][:2]
    assert first.split()[:8] == ["10.0.0.0:8000", "p0", "1", "0", "0", "1", "25%", "500ms"]
    assert "1 = 2" in first
    assert second.split()[:4] == ["10.0.0.1:8000", "p1", "2", "2"]


def test_decisions_are_listed_newest_first(picker: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--address", picker]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:5] == ["AGE", "REQUEST", "MODEL", "PRIORITY", "ANSWER"]
    assert {line.split()[1]: line.split()[4] for line in lines} == {"good": "picked", "bad": "503"}
    assert main(["explain", "--address", picker, "--refused"]) == 0
    assert "no ready endpoint may serve this request" in capsys.readouterr().out
    assert main(["explain", "--address", picker, "--endpoint", "10.9.9.9:1"]) == 0
    assert capsys.readouterr().out == "No such decision is kept.\n"


def test_json_is_the_pickers_page(picker: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--address", picker, "bad", "-o", "json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["picker"] == picker
    assert answer["decisions"][0]["outcome"] == "rejected-no-endpoints"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["unknown"], "no decision on request unknown is kept"),
        (["good", "--limit", "3"], "leave out the request's id"),
        (["--limit", "0"], "--limit is a number from 1 to 500"),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    picker: str, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main(["explain", "--address", picker, *arguments]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("headroom: ")
    assert sentence in told.err
    assert len(told.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--address", "nowhere"], "write HOST:PORT"),
        (["--address", f"{HOST}:1"], "does not answer on its metrics port"),
        (["--address", f"{HOST}:1"], "metrics port: Connection refused"),
        (["pool", "--endpoint", "server-1"], "--endpoint server-1: write IP:PORT"),
        ([], "name the InferencePool, or a picker by --address HOST:PORT"),
        (["pool", "--kubeconfig", "/nonexistent"], "/nonexistent"),
    ],
)
def test_without_a_picker_the_line_says_what_to_do(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert plugin(["explain", *arguments]) == 1
    told = capsys.readouterr().err
    assert told.startswith("kubectl headroom: ")
    assert sentence in told
    assert len(told.splitlines()) == 1


def test_what_kubectl_repeats_for_each_attempt_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "kubectl"
    program.write_text(
        "#!/bin/sh\n"
        "for i in 1 2 3; do echo 'E1201 06:03:33.177359    5672 memcache.go:265] Unhandled' >&2; done\n"
        "echo 'The connection to the server localhost:8080 was refused' >&2; exit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert plugin(["explain", "pool"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("kubectl headroom: no cluster is named: set KUBECONFIG, give --kubeconfig")


def test_columns_are_aligned() -> None:
    assert table([["a", "bb"], ["ccc", "d", "e"], ["f"]]) == "a    bb\nccc  d   e\nf"


def test_each_stage_numbers_its_own_choice() -> None:
    servers = [("10.0.0.1:8000", "decode"), ("10.0.0.2:8000", "prefill")]
    signals = {"waiting": 0, "unseenRequests": 0, "running": 0, "kvUsage": 0, "metricsAgeSeconds": 0.1}
    nothing = {"filters": [], "scorers": [], "scored": [], "picker": "p"}
    decision = {
        "requestId": "r", "at": "now", "ageSeconds": 1.0, "model": "m", "objective": "", "priority": 0,
        "status": 404, "reason": "", "endpoint": "10.0.0.1:8000", "fallbacks": [], "prefixHit": 0.0,
        "waited": False, "candidates": 2, "stagesLeftOut": ["encode"],
        "endpoints": [{"endpoint": each, "name": name, **signals} for each, name in servers],
        "profiles": [{"name": name, "stage": name, "picked": each, **nothing} for each, name in servers],
    }  # fmt: skip
    facts, decode, prefill = tables.explanation(decision, "picker").split("\n\n")
    assert "Left out    encode stage" in facts
    assert "Answer      404 of the model server" in facts
    assert decode.startswith("Profile decode (decode stage): 2 candidates")
    assert prefill.startswith("Profile prefill (prefill stage): 2 candidates")
    choices = [[line.split()[2] for line in part.splitlines()[-2:]] for part in (decode, prefill)]
    assert choices == [["1", "-"], ["-", "1"]]
