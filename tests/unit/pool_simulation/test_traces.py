"""Replay of traces in Azure's and Mooncake's formats, and what is said of bad rows."""

import json
import os
import runpy
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest

from pool_simulation.workloads import spec, start, traces
from workload_runs import requests, workload

FOLDER = Path(__file__).parents[3] / "docs/simulate"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = '{"timestamp": 1000, "input_length": 1200, "output_length": 5, "hash_ids": [1, 2, 3]}\n'


def trace(path: Path, **more: object) -> spec.Trace:
    return spec.Trace.model_validate({"name": "t", "file": str(path), **more})


def written(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text)
    return path


def faults(folder: Path, text: str, **more: object) -> list[str]:
    path = written(folder, text)
    with pytest.raises(traces.TraceError) as refused:
        traces.scan(trace(path, **more), path)
    return [line.removeprefix(str(path)) for line in refused.value.lines()]


def test_the_samples_are_what_the_script_makes() -> None:
    made = runpy.run_path(str(FOLDER / "make_samples.py"))
    assert made["azure"]() == (FOLDER / "azure-sample.csv").read_text()
    assert made["mooncake"]() == (FOLDER / "mooncake-sample.jsonl").read_text()


def test_an_azure_trace_keeps_times_and_lengths_and_shares_nothing() -> None:
    given = requests(workload("traces:\n- {name: a, file: azure-sample.csv}\n"))
    lines = (FOLDER / "azure-sample.csv").read_text().splitlines()[1:]
    lengths = [(request.prompt_tokens, request.output_tokens) for request in given]
    assert lengths == [tuple(map(int, line.split(",")[1:])) for line in lines]
    assert given[0].arrival_s == 0
    # 18:15:46.0028560 and 18:15:47.0052710
    assert given[1].arrival_s == pytest.approx(1.002415, abs=1e-6)
    assert len({request.prompt[0] for request in given}) == len(given)


def test_a_mooncake_trace_shares_prefixes_as_its_hash_ids_do() -> None:
    given = requests(workload("traces:\n- {name: a, file: mooncake-sample.jsonl}\n"))
    rows = [json.loads(line) for line in (FOLDER / "mooncake-sample.jsonl").read_text().splitlines()]
    assert [request.prompt_tokens for request in given] == [row["input_length"] for row in rows]
    shared = 0
    for (one, row), (other, other_row) in pairwise(zip(given, rows, strict=True)):
        same = sum(a == b for a, b in zip(row["hash_ids"], other_row["hash_ids"], strict=False))
        assert sum(a == b for a, b in zip(one.prompt, other.prompt, strict=False)) == same
        shared += same
    assert shared > 100
    assert {segment.tokens for segment in given[0].prompt[:-1]} == {512}


def test_speed_scale_and_duration_apply_to_a_trace() -> None:
    def times(more: str, scale: float = 1.0) -> list[float]:
        text = f"{more}traces:\n- {{name: a, file: azure-sample.csv, speed: 2}}\n"
        return [request.arrival_s for request in requests(workload(text, scale=scale))]

    whole = [
        request.arrival_s for request in requests(workload("traces:\n- {name: a, file: azure-sample.csv}"))
    ]
    assert times("") == pytest.approx([time / 2 for time in whole])
    assert times("", scale=5.0) == pytest.approx([time / 10 for time in whole])
    assert times("duration_s: 10\n") == pytest.approx([time / 2 for time in whole if time < 20])


def test_traces_and_streams_come_together_in_order_of_time() -> None:
    text = """
duration_s: 60
streams:
- {name: s, preset: sharegpt, arrivals: {type: poisson, rate: 1}}
traces:
- {name: t, file: azure-sample.csv}
- {name: m, file: mooncake-sample.jsonl}
"""
    times = [(request.arrival_s, request.stream) for request in workload(text).arrivals()]
    assert times == sorted(times, key=lambda each: each[0])
    assert {stream for _, stream in times} == {"s", "t", "m"}


def test_rows_slightly_out_of_order_are_sorted(tmp_path: Path) -> None:
    clocks = ["18:15:47", "18:15:46", "18:15:49", "18:15:48"]
    path = written(tmp_path, AZURE + "".join(f"2023-11-16 {clock},{8},{2}\n" for clock in clocks))
    assert [row.line for row in traces.rows(trace(path), path)] == [3, 2, 5, 4]


def test_a_trace_far_out_of_order_is_refused(tmp_path: Path) -> None:
    rows = [f"2023-11-16 18:{15 + n // 60}:{n % 60:02},8,2\n" for n in range(1500)]
    text = AZURE + "".join(rows) + "2023-11-16 18:15:00,8,2\n"
    assert faults(tmp_path, text) == [":1502: is more than 128 rows late; sort the trace by time"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("", ": holds no requests", id="empty"),
        pytest.param(AZURE, ": holds no requests", id="header-alone"),
        pytest.param("a,b\n1,2\n", ":1: is neither an Azure trace", id="other-columns"),
        pytest.param(AZURE + "yesterday,1,2\n", ":2: TIMESTAMP 'yesterday' is no date", id="date"),
        pytest.param(
            AZURE + "2023-11-16 18:15:46,0,2\n", ":2: ContextTokens is '0', must be a whole", id="zero"
        ),
        pytest.param(
            AZURE + "2023-11-16 18:15:46,1.5,2\n", ":2: ContextTokens is '1.5', must be a whole", id="half"
        ),
        pytest.param(AZURE + "2023-11-16 18:15:46,9\n", ":2: has 2 columns, needs 3", id="short"),
        pytest.param(AZURE + '2023-11-16 18:15:46,"9,2\n', ":2: is not CSV", id="quote"),
        pytest.param(ROW + "{\n", ":2: is not JSON", id="not-json"),
        pytest.param(ROW + "\n" + "7\n", ":3: is no JSON object", id="number"),
        pytest.param(ROW.replace("1000", '"x"'), ":1: timestamp must be a number", id="timestamp"),
        pytest.param(ROW.replace("1000", "NaN"), ":1: timestamp must be a number", id="nan"),
        pytest.param(ROW.replace("1200", "true"), ":1: input_length is 'True'", id="bool"),
        pytest.param(
            ROW.replace('"output_length": 5, ', ""), ":1: output_length is missing", id="missing-field"
        ),
        pytest.param(ROW.replace("[1, 2, 3]", "[1, -2]"), ":1: hash_ids must be a list", id="negative-hash"),
        pytest.param(
            ROW.replace("[1, 2, 3]", "[1]"),
            ":1: 1 hash_ids do not fit 1200 tokens in blocks of 512 (3)",
            id="few",
        ),
        pytest.param('"TIMESTAMP,a\n', ":1: is not CSV", id="quote-in-header"),
        pytest.param(ROW.replace("1000", "1" * 5000), ":1: is not JSON: a number is too long", id="digits"),
        pytest.param("{" + "[" * 100_000 + "\n", ":1: is not JSON", id="nested"),
        pytest.param(
            '{"a": "' + "x" * (1 << 20) + '"}\n', ":1: is longer than 1048576 characters", id="long"
        ),
    ],
)
def test_a_bad_row_is_named_by_line(tmp_path: Path, text: str, says: str) -> None:
    (fault,) = faults(tmp_path, text)
    assert fault.startswith(says)


def test_the_first_five_bad_rows_are_named(tmp_path: Path) -> None:
    text = AZURE + "2023-11-16 18:15:46,9,2\n" + "x,9,2\n" * 20
    assert [fault.split(":")[1] for fault in faults(tmp_path, text)] == ["3", "4", "5", "6", "7"]


def test_what_is_no_text_or_no_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(traces.TraceError, match="is not UTF-8 text"):
        traces.scan(trace(path), path)
    with pytest.raises(traces.TraceError, match="cannot be read: No such file"):
        start.prepare(spec.load("traces:\n- {name: a, file: nowhere.csv}\n"), tmp_path)


def test_a_trace_that_has_no_end_or_cannot_be_read_twice_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "/dev/zero", "."):
        with pytest.raises(traces.TraceError, match="is not a regular file"):
            traces.scan(trace(tmp_path), tmp_path / name)
    with pytest.raises(traces.TraceError, match="cannot be read: embedded null"):
        traces.scan(trace(tmp_path), tmp_path / "a\0b")


def test_a_trace_of_years_needs_a_speed_or_a_duration(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(AZURE + "2001-01-01 00:00:00,8,2\n2023-01-01 00:00:00,8,2\n")
    listed = "traces:\n- {name: a, file: t.csv}\n"
    with pytest.raises(traces.TraceError, match="lasts 8035 days, and a run at most 30; give it a speed"):
        start.prepare(spec.load(listed), tmp_path)
    assert start.prepare(spec.load("duration_s: 60\n" + listed), tmp_path).duration_s == 60


def test_a_long_trace_is_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    with path.open("w") as file:
        for number in range(1500):
            ids = [10**15 + number + block for block in range(100)]
            file.write(
                f'{{"timestamp": {number}, "input_length": 51200, "output_length": 5, "hash_ids": {ids}}}\n'
            )
    tracemalloc.start()
    try:
        prepared = start.prepare(spec.load(f"traces:\n- {{name: a, file: {path}}}\n"), tmp_path)
        count = sum(1 for _ in prepared.start(1).arrivals())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 1500
    assert peak < path.stat().st_size / 2
