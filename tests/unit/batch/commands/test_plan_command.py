"""`headroom-batch plan`: what it reads, prints and returns."""

import asyncio
import json
from pathlib import Path

import pytest

from batch_contracts import make_job
from batch_subscriber.commands.plan import compared, read_page
from batch_subscriber.main import run
from batch_subscriber.metrics import Metrics
from batch_subscriber.opening import open_queue


@pytest.mark.parametrize(
    ("flags", "verdict", "status"),
    [
        (["--rate", "10", "--deadline", "2m"], "on time", 0),
        (["--rate", "10", "--deadline", "1m"], "late", 3),
        (["--rate", "10", "--deadline", "1m", "--retention", "1m"], "lost", 4),
        (["--rate", "10", "--retry-share", "1"], "stuck", 5),
        (["--in-flight", "20", "--mean-s", "2", "--deadline", "2m"], "on time", 0),
    ],
)
def test_the_status_is_the_verdict(
    capsys: pytest.CaptureFixture[str], flags: list[str], verdict: str, status: int
) -> None:
    assert run(["plan", "--backlog", "1000", *flags, "-o", "json"]) == status
    assert json.loads(capsys.readouterr().out)["verdict"] == verdict


def test_the_table_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--backlog", "36000", "--rate", "5", "--retry-share", "0.2", "--worst-s", "30"]
    assert run(["plan", *flags, "--deadline", "2h", "--retention", "7d"]) == 3
    # 36,000 jobs at 4 a second are 9,000 s, and 30 s more; the deadline is 7,200 s away.
    assert capsys.readouterr().out.splitlines() == [
        "verdict      late",
        "backlog      36000 jobs, the oldest 0s old",
        "rate         4.00 jobs/s (20% of attempts are made again)",
        "drain time   2h 30m 30s",
        "deadline     30m 30s late",
        "needed rate  5.02 jobs/s",
        "retention    done 6d 21h 29m 30s before the queue drops jobs",
    ]


def test_the_backlog_is_that_of_the_queue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:{tmp_path}/queue.db"

    async def fill() -> None:
        queue = await open_queue(url)
        await queue.put([make_job(number) for number in range(7)])
        await queue.receive(2, 60.0, 1.0)
        await queue.close()

    asyncio.run(fill())
    assert run(["plan", "--queue", url, "--rate", "1", "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["backlog"], shown["drain_s"]) == (7, 7.0)
    assert shown["oldest_age_s"] > 0


def test_two_readings_of_a_subscribers_page_give_rate_times_and_retries() -> None:
    metrics = Metrics()
    before = read_page(metrics.page().decode())
    for _ in range(6):
        metrics.count("results", "none")
        metrics.observe("request_seconds", 4.0)
    for _ in range(2):
        metrics.count("retries", "retry")
        metrics.observe("request_seconds", 8.0)
    seen = compared([before], [read_page(metrics.page().decode())], 2.0)
    # 6 results and 2 retries in 2 s; 40 s in 8 requests; 8 s is in the bucket that ends at 10 s.
    assert seen == {"rate": 4.0, "retry_share": 0.25, "mean_s": 5.0, "worst_s": 10.0}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--rate", "1"], "the backlog is not known"),
        (["--backlog", "1"], "the rate is not known"),
        (["--backlog", "1", "--rate", "1", "--deadline", "soon"], "write it as 90m, 24h or 7d"),
        (["--backlog", "1", "--metrics", "file:/etc/passwd"], "must be an http URL"),
    ],
)
def test_what_is_missing_or_wrong_is_named(
    capsys: pytest.CaptureFixture[str], flags: list[str], says: str
) -> None:
    assert run(["plan", *flags]) == 2
    assert says in capsys.readouterr().err
