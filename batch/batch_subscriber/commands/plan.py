"""`headroom-batch plan`: when the backlog will be done, against a deadline and the queue's retention."""

import argparse
import asyncio
import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from batch_subscriber.batches.api_errors import ApiError
from batch_subscriber.batches.records import window_seconds
from batch_subscriber.errors import ConfigurationError, QueueUnavailableError
from batch_subscriber.metric_table import PREFIX
from batch_subscriber.opening import open_queue
from batch_subscriber.planning import Load, Plan, Verdict, plan
from batch_subscriber.queues.interface import Backlog

#: Exit status of each verdict.
_STATUS: Final = {Verdict.ON_TIME: 0, Verdict.LATE: 3, Verdict.LOST: 4, Verdict.STUCK: 5}
_MAX_PAGE: Final = 4 * 2**20
_ANSWER_S: Final = 10.0

_Samples = Mapping[str, float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("--queue", default="", help="URL of the queue, for the backlog and its age")
    parser.add_argument("--backlog", type=_count, help="jobs, where the queue cannot tell (Pub/Sub)")
    parser.add_argument(
        "--metrics", action="append", default=[], metavar="URL",
        help="metrics page of a subscriber, http://HOST:9091/metrics; repeat it for each of several",
    )  # fmt: skip
    parser.add_argument("--measure-s", type=_positive, default=10.0, help="seconds between two readings (10)")
    parser.add_argument("--rate", type=_positive, help="attempts a second, in place of what --metrics shows")
    parser.add_argument("--mean-s", type=_positive, help="average seconds of an attempt, with --in-flight")
    parser.add_argument("--in-flight", type=_count, default=0, help="requests in flight together")
    parser.add_argument("--worst-s", type=_positive, help="longest seconds of an attempt")
    parser.add_argument("--retry-share", type=_share, help="share of attempts that are made again, 0 to 1")
    parser.add_argument("--deadline", default="", help="time in which all is to be done, e.g. 90m, 24h")
    parser.add_argument("--retention", default="", help="time that the queue keeps a job, e.g. 7d")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError("must be above 0")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return number


def _share(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError("must be from 0 to 1")
    return number


def run(given: argparse.Namespace) -> int:
    """Print the plan; return 0: on time, 3: late, 4: the queue would drop jobs, 5: nothing is done."""
    deadline_s, retention_s = _seconds("--deadline", given.deadline), _seconds("--retention", given.retention)
    backlog = asyncio.run(_backlog(given.queue)) if given.queue else Backlog(None, None, None)
    load = _load(given, backlog, _measured(given))
    made = plan(load, deadline_s=deadline_s, retention_s=retention_s)
    print(_as_json(load, made) if given.output == "json" else _as_table(load, made))
    return _STATUS[made.verdict]


def _seconds(flag: str, text: str) -> float | None:
    try:
        return float(window_seconds(text)) if text else None
    except ApiError as wrong:
        msg = f"{flag} {text!r}: write it as 90m, 24h or 7d, at most 14d"
        raise ConfigurationError(msg) from wrong


async def _backlog(url: str) -> Backlog:
    queue = await open_queue(url)
    try:
        return await queue.backlog()
    finally:
        await queue.close()


def _load(given: argparse.Namespace, backlog: Backlog, seen: _Samples) -> Load:
    """Return what flags, queue and metrics say; a flag wins."""
    count = given.backlog
    if count is None:
        if backlog.waiting is None:
            raise ConfigurationError(
                "the backlog is not known: give --queue of one that counts, or --backlog"
            )
        count = backlog.waiting + (backlog.held or 0)
    oldest = backlog.oldest_submitted_at
    rate = given.rate if given.rate is not None else seen.get("rate")
    if rate is None and given.mean_s is None:
        raise ConfigurationError(
            "the rate is not known: give --metrics, --rate, or --in-flight with --mean-s"
        )
    return Load(
        backlog=count,
        attempts_per_s=rate,
        in_flight=given.in_flight,
        mean_s=given.mean_s or seen.get("mean_s", 0.0),
        worst_s=given.worst_s or seen.get("worst_s", 0.0),
        retry_share=seen.get("retry_share", 0.0) if given.retry_share is None else given.retry_share,
        oldest_age_s=0.0 if oldest is None else max(0.0, time.time() - oldest),
    )


def _measured(given: argparse.Namespace) -> _Samples:
    """Return rate, mean and worst time, and share of retries, between two readings of the pages."""
    if not given.metrics:
        return {}
    first = [_read(url) for url in given.metrics]
    began = time.monotonic()
    time.sleep(given.measure_s)
    last = [_read(url) for url in given.metrics]
    return compared(first, last, time.monotonic() - began)


def compared(first: list[_Samples], last: list[_Samples], seconds: float) -> _Samples:
    """Return what two readings of the same pages, `seconds` apart, say together.

    An attempt ends in a result or is made again. The worst time is the bucket that holds the longest attempt
    since the start of the processes.
    """
    grown = {
        name: sum(page.get(name, 0.0) for page in last) - sum(page.get(name, 0.0) for page in first)
        for name in ("results", "retries", "requests", "request_s")
    }
    attempts = grown["results"] + grown["retries"]
    seen = {"rate": max(0.0, attempts / seconds), "worst_s": max(page.get("worst_s", 0.0) for page in last)}
    if attempts > 0:
        seen["retry_share"] = min(1.0, max(0.0, grown["retries"] / attempts))
    if grown["requests"] > 0:
        seen["mean_s"] = grown["request_s"] / grown["requests"]
    return seen


def _read(url: str) -> _Samples:
    if not url.startswith(("http://", "https://")):
        msg = f"--metrics {url!r} must be an http URL"
        raise ConfigurationError(msg)
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_S) as answer:  # noqa: S310 - http, checked above
            return read_page(answer.read(_MAX_PAGE).decode())
    except (urllib.error.URLError, OSError, ValueError) as failure:
        msg = f"--metrics {url}: {failure}"
        raise QueueUnavailableError(msg) from failure


def read_page(text: str) -> _Samples:
    """Return a subscriber's results, retries, requests, their seconds, and the longest one's bucket."""
    found = {"results": 0.0, "retries": 0.0, "requests": 0.0, "request_s": 0.0, "worst_s": 0.0}
    buckets: dict[float, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == f"{PREFIX}request_seconds_count":
                found["requests"] += sample.value
            elif sample.name == f"{PREFIX}request_seconds_sum":
                found["request_s"] += sample.value
            elif sample.name == f"{PREFIX}request_seconds_bucket":
                buckets[float(sample.labels["le"])] = sample.value
            elif sample.name == f"{PREFIX}results_total":
                found["results"] += sample.value
            elif sample.name == f"{PREFIX}retries_total":
                found["retries"] += sample.value
    below = 0.0
    for bound, count in sorted(buckets.items()):
        if count > below:
            found["worst_s"] = bound if math.isfinite(bound) else found["worst_s"]
            below = count
    return found


def _as_json(load: Load, made: Plan) -> str:
    def number(value: float | None) -> float | None:
        return None if value is None or math.isinf(value) else round(value, 3)

    return json.dumps(
        {
            "verdict": made.verdict.value,
            "backlog": load.backlog,
            "oldest_age_s": number(load.oldest_age_s),
            "jobs_per_s": number(made.jobs_per_s),
            "retry_share": number(load.retry_share),
            "worst_s": number(load.worst_s),
            "drain_s": number(made.drain_s),
            "spare_s": number(made.spare_s),
            "retention_spare_s": number(made.retention_spare_s),
            "needed_jobs_per_s": number(made.needed_jobs_per_s),
        }
    )


def _as_table(load: Load, made: Plan) -> str:
    rows = [
        ("verdict", made.verdict.value),
        ("backlog", f"{load.backlog} jobs, the oldest {_legible(load.oldest_age_s)} old"),
        ("rate", f"{made.jobs_per_s:.2f} jobs/s ({load.retry_share:.0%} of attempts are made again)"),
        ("drain time", _legible(made.drain_s)),
    ]
    if made.spare_s is not None and made.needed_jobs_per_s is not None:
        word = "early" if made.spare_s >= 0 else "late"
        rows.append(("deadline", f"{_legible(abs(made.spare_s))} {word}"))
        rows.append(("needed rate", f"{made.needed_jobs_per_s:.2f} jobs/s"))
    if made.retention_spare_s is not None:
        word = "before" if made.retention_spare_s >= 0 else "after"
        rows.append(
            ("retention", f"done {_legible(abs(made.retention_spare_s))} {word} the queue drops jobs")
        )
    return "\n".join(f"{name:<12} {value}" for name, value in rows)


def _legible(seconds: float) -> str:
    if math.isinf(seconds):
        return "never"
    whole = round(seconds)
    parts = [(whole // 86_400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")]
    return " ".join(f"{count}{unit}" for count, unit in parts if count) or "0s"
