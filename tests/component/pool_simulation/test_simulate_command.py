"""`headroom simulate` as its users run it."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from headroom_cli.main import main

POOL = """\
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: small}
spec:
  selector: {matchLabels: {app: small}}
  targetPorts: [{number: 8000}]
"""
WORKLOAD = """\
duration_s: 5
warmup_s: 1
streams:
- name: chat
  preset: chat
  arrivals: {type: poisson, rate: 4}
  slo: {ttft_ms: 200, tpot_ms: 30}
"""
CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: random-picker}]
"""
#: Studies start processes, which may take minutes on a busy machine.
pytestmark = pytest.mark.timeout(600)

#: Slow servers: one is not enough for the workload.
SLOW = ("--set", "iteration_s=0.02", "--set", "max_num_seqs=20")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pool.yaml").write_text(POOL)
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "headroom_cli.main", "simulate", *arguments]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["simulate", *arguments]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    return shown.err


def study(*more: str) -> str:
    arguments = (
        "--pool",
        "pool.yaml",
        "--workload",
        "w.yaml",
        "--seeds",
        "2",
        "--max-replicas",
        "4",
        *SLOW,
        *more,
    )
    done = subprocess.run(command(*arguments), capture_output=True, text=True, check=True, timeout=500)
    assert done.stderr == ""
    return done.stdout


def test_a_study_answers_every_question_and_draws_a_plot(files: Path) -> None:
    shown = study("--plot", "out.png")
    assert "Pool small: 1 replicas of" in shown
    for row in ("within SLOs", "TTFT p99", "prefix hits", "prefix-first"):
        assert row in shown
    assert re.search(r"^\d+ replicas? (is|are) the smallest count with which 99 %", shown, re.MULTILINE)
    assert "profiles tried" in shown
    assert "Scale out when a replica has" in shown
    assert (files / "out.png").read_bytes().startswith(b"\x89PNG")


def test_the_json_is_the_same_byte_for_byte_with_one_process_and_with_two(files: Path) -> None:
    one = study("--output", "json", "--plot", "none", "--jobs", "1")
    assert study("--output", "json", "--plot", "none", "--jobs", "2") == one
    found = json.loads(one)
    smallest = found["replicas"]["smallest"]
    goodputs = {each["replicas"]: each["figures"]["goodput"]["mean"] for each in found["replicas"]["tried"]}
    assert goodputs[smallest] >= 0.99
    assert smallest == 1 or goodputs[smallest - 1] < goodputs[smallest]
    assert found["autoscaling"]["per_replica"]["in_flight"]["mean"] > 0
    assert len(found["sentences"]) == 3


def test_a_slower_pool_compares_as_worse(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    annotated = POOL.replace("name: small", 'name: small, annotations: {simulate.headroom.dev/replicas: "3"}')
    (files / "three.yaml").write_text(annotated)
    narrow = [*SLOW, "--set", "max_num_seqs=6", "--seeds", "4", "--jobs", "1"]
    arguments = ["--compare", "three.yaml", "pool.yaml", "--workload", "w.yaml", *narrow]
    assert main(["simulate", *arguments, "--output", "json", "--plot", "cmp.svg"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["replicas"] for each in found["pools"]] == [3, 1]
    assert found["differences"]["ttft_mean_s"]["verdict"] == "worse"
    assert found["differences"]["goodput"]["verdict"] == "worse"
    assert (files / "cmp.svg").read_text().startswith("<?xml")
    assert main(["simulate", *arguments, "--plot", "none"]) == 0
    assert re.search(r"within SLOs .*worse", capsys.readouterr().out)


def test_a_trace_is_replayed_under_slos_of_the_command_line(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"2023-11-16 18:15:{second:02},{500},{20}\n" for second in range(40))
    (files / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    arguments = ["--pool", "pool.yaml", "--trace", "t.csv", "--ttft-ms", "100", "--seeds", "2", "--jobs", "1"]
    assert main(["simulate", *arguments, "--max-replicas", "2", "--output", "json", "--plot", "none"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pool"]["figures"]["requests"]["mean"] == 40
    assert found["replicas"]["smallest"] == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(["--pool", "no.yaml"], "headroom: no.yaml: cannot be read: No such file", id="no-file"),
        pytest.param(["--pool", "w.yaml"], "headroom: w.yaml: holds 0 objects of the kind", id="no-pool"),
        pytest.param(
            ["--pool", "pool.yaml", "--engine", "x"],
            "no engine preset is named 'x'; there are llama-8b",
            id="engine",
        ),
        pytest.param(
            ["--pool", "pool.yaml", "--set", "max_num_seqs=0"],
            "max_num_seqs is 0, must be at least 1",
            id="range",
        ),
        pytest.param(
            ["--pool", "pool.yaml", "--set", "max_num_seqs=x"],
            "max_num_seqs must be a whole number",
            id="number",
        ),
        pytest.param(
            ["--pool", "pool.yaml", "--set", "a=1"], "--set a=1: write FIELD=NUMBER; fields", id="field"
        ),
        pytest.param(
            ["--pool", "pool.yaml", "--profile", "x"], "--profile x: write NAME=FILE", id="profile-form"
        ),
        pytest.param(
            ["--pool", "pool.yaml", "--profile", "x=w.yaml"],
            "w.yaml:1: duration_s: unknown key",
            id="profile",
        ),
        pytest.param(
            ["--pool", "pool.yaml", "--ttft-ms", "9"], "--ttft-ms and --tpot-ms go with --trace", id="slo"
        ),
        pytest.param(
            ["--pool", "pool.yaml", "--plot", "a.pdf"], "the name must end in .png or .svg", id="plot-format"
        ),
        pytest.param(
            ["--pool", "pool.yaml", "--plot", "no/a.png"], "the folder is not there", id="plot-folder"
        ),
        pytest.param(
            ["--pool", "pool.yaml", "--set", "max_model_len=300", "--jobs", "1"],
            "tokens, and the engine takes 300; bound the stream",
            id="too-long-request",
        ),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    arguments: list[str], says: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = refused(capsys, *arguments, "--workload", "w.yaml")
    assert says in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize("option", ["--seeds", "--seed", "--replicas", "--jobs", "--max-replicas"])
def test_a_number_too_long_for_a_float_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "--pool", "p", "--workload", "w", option, "9" * 400])
    assert ended.value.code == 2
    assert f"argument {option}: 9999" in capsys.readouterr().err


def test_names_are_shown_as_they_are_written(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "_a[bold]:smile:$x$\\[red].yaml"  # markup, an emoji and mathematics to rich and matplotlib
    (files / name).write_text(POOL.replace("name: small", "name: 'pool[/b]'"))
    (files / "config.yaml").write_text(CONFIG)
    once = ["--workload", "w.yaml", "--seeds", "1", "--jobs", "1", "--max-replicas", "1"]
    profile = ["--profile", "[/x]$y$=config.yaml", "--plot", "a.png"]
    assert main(["simulate", "--pool", name, *once, *profile]) == 0
    shown = capsys.readouterr().out
    assert "Pool pool[/b]: 1 replicas" in shown
    assert "[/x]$y$" in shown
    assert main(["simulate", "--compare", name, "pool.yaml", *once, "--plot", "b.png"]) == 0
    assert name in capsys.readouterr().out
    assert (files / "b.png").stat().st_size > 1000


def test_a_workload_without_requests_in_its_window_is_refused(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "w.yaml").write_text(WORKLOAD.replace("rate: 4", "rate: 0.000001"))
    shown = refused(capsys, "--pool", "pool.yaml", "--workload", "w.yaml", "--jobs", "1")
    assert shown == "headroom: no request arrives from 1 s to 5 s; raise the rate or the duration\n"


def test_requests_of_one_moment_have_finite_figures(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = '{"timestamp": 7, "input_length": 100, "output_length": 5}\n'
    (files / "t.jsonl").write_text(row * 3)
    arguments = ["--pool", "pool.yaml", "--trace", "t.jsonl", "--jobs", "1", "--plot", "none"]
    assert main(["simulate", *arguments, "--seeds", "2", "--max-replicas", "1", "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pool"]["load"]["requests_per_s"]["mean"] == pytest.approx(3)
    assert found["pool"]["figures"]["served_per_s"]["mean"] == pytest.approx(3)


def test_a_file_may_come_by_standard_input_and_only_one(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(WORKLOAD.replace("rate: 4", "rate: 0")))
    assert refused(capsys, "--pool", "pool.yaml", "--workload", "-").startswith(
        "headroom: -:6: streams[0].arr"
    )
    assert "-: a workload is a mapping" in refused(capsys, "--pool", "-", "--workload", "-")


def test_faults_of_a_workload_are_named_by_line(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "w.yaml").write_text(WORKLOAD.replace("rate: 4", "rate: 0").replace("tpot_ms", "tpot"))
    shown = refused(capsys, "--pool", "pool.yaml", "--workload", "w.yaml")
    assert "w.yaml:6: streams[0].arrivals.rate: Input should be greater than 0" in shown
    assert "w.yaml:7: streams[0].slo.tpot: unknown key; remove it" in shown


def test_bad_rows_of_a_trace_are_named_by_line(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nx,1,2\n")
    shown = refused(capsys, "--pool", "pool.yaml", "--trace", "t.csv")
    assert shown.startswith("headroom: t.csv:2: TIMESTAMP 'x' is no date and time")


@pytest.mark.parametrize(
    "arguments",
    [["--workload", "w"], ["--pool", "p"], ["--pool", "p", "--workload", "w", "--goal", "2"]],
)
def test_a_bad_command_line_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *arguments])
    assert ended.value.code == 2
    assert "usage: headroom simulate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(signal.SIGINT, 130, id="ctrl-c"),
        pytest.param(signal.SIGTERM, 143, id="sigterm"),
        pytest.param(signal.SIGKILL, -signal.SIGKILL, id="sigkill"),
    ],
)
def test_a_signal_ends_it_with_all_its_processes(files: Path, sent: signal.Signals, status: int) -> None:
    (files / "w.yaml").write_text(WORKLOAD.replace("duration_s: 5", "duration_s: 200000"))
    arguments = command("--pool", "pool.yaml", "--workload", "w.yaml", "--jobs", "2", "--plot", "none")
    with subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=interruptible,  # noqa: PLW1509
    ) as running:
        parent = psutil.Process(running.pid)
        while len(workers := busy(parent)) < 2:
            assert running.poll() is None
            time.sleep(0.1)
        if sent == signal.SIGINT:
            os.killpg(running.pid, sent)  # as a terminal does
        else:
            running.send_signal(sent)
        out, err = running.communicate(timeout=300)
    assert (running.returncode, out) == (status, "")
    assert err == "" or sent == signal.SIGKILL  # multiprocessing then reports semaphores that it removes
    _, alive = psutil.wait_procs(workers, timeout=120)
    assert not alive


def interruptible() -> None:
    """Undo what a shell does to all that it starts in the background, these tests included: ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def busy(parent: psutil.Process) -> list[psutil.Process]:
    """Return the processes that simulate: children that have used a second of CPU."""
    return [each for each in parent.children() if sum(each.cpu_times()[:2]) > 1.0]
