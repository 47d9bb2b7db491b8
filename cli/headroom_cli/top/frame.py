"""One frame of `headroom top`: a picker's pages as titled tables of text. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from headroom_cli.predictor.tables import summary
from headroom_cli.text_table import age, number, part, table

Object = dict[str, Any]

#: Endpoints and flows shown; the others are counted in a line.
MOST_ENDPOINTS: Final = 30
MOST_FLOWS: Final = 15


@dataclass(frozen=True, slots=True)
class Section:
    """A titled table; the first row is the head."""

    title: str
    rows: Sequence[Sequence[str]]
    note: str = ""
    """A line below the table."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What one picker does now."""

    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]


def frame_of(picker: str, state: Object, queue: Object) -> Frame:
    """Return the frame of the pages /debug/state and /debug/queue."""
    router = state["router"]
    sections = [_endpoints(router["endpoints"])]
    if queue["enabled"]:
        sections += [_bands(queue["bands"]), _flows(queue)]
    return Frame(_facts(picker, state, queue), sections)


def plain(frame: Frame) -> str:
    """Return a frame as text without colours."""
    parts = [table(frame.facts)]
    for section in frame.sections:
        lines = [section.title, table(section.rows), *([section.note] if section.note else [])]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _facts(picker: str, state: Object, queue: Object) -> list[tuple[str, str]]:
    router, pool = state["router"], state["pool"]
    endpoints = router["endpoints"]
    ready = sum(each["ready"] for each in endpoints)
    condition = " (draining)" if state["draining"] else "" if state["synced"] else " (not synced)"
    index = router["prefixIndex"]
    blocks = index["promptBlocks"]
    hits = f"{index['matchedBlocks'] / blocks:.0%} of {blocks} blocks" if blocks else "-"
    return [
        ("Pool", f"{pool['namespace']}/{pool['name']}"),
        ("Picker", f"{picker}{condition}"),
        ("Endpoints", f"{ready} ready of {len(endpoints)}"),
        ("Saturation", _saturation(router, queue)),
        ("Queue", _queue(queue)),
        ("Prefix hits", f"{hits} since the start, {index['entries']} blocks known"),
        ("Predictor", summary(router["latencyPrediction"])),
    ]


def _saturation(router: Object, queue: Object) -> str:
    if not queue["enabled"]:
        return number(router["saturation"])
    stages = {stage: load for stage, load in queue["saturation"].items() if stage != "effective"}
    text = number(queue["saturation"].get("effective"))
    if len(stages) > 1:
        text += " (" + ", ".join(f"{stage} {number(load)}" for stage, load in stages.items()) + ")"
    if queue["failedOpenEndpoints"]:
        text += f"; {queue['failedOpenEndpoints']} endpoints judged without metrics"
    return text


def _queue(queue: Object) -> str:
    if not queue["enabled"]:
        return "off"
    if not queue["requests"]:
        return f"empty, {queue['dispatchRate']:.1f} requests/s leave"
    text = (
        f"{queue['requests']} requests, {_bytes(queue['bytes'])}, the oldest for "
        f"{age(queue['oldestWaitSeconds'])}, {queue['dispatchRate']:.1f} requests/s leave"
    )
    if queue["setAside"]:
        text += f"; {queue['setAside']} wait for an endpoint of their hint"
    return f"{text}; the pool is empty" if queue["poolEmpty"] else text


def _endpoints(endpoints: Sequence[Object]) -> Section:
    head = [
        "ENDPOINT",
        "NAME",
        "READY",
        "CONTACT",
        "WAITING",
        "RUNNING",
        "KV USED",
        "IN FLIGHT",
        "PREFIX HITS",
    ]
    shown = sorted(endpoints, key=lambda each: each["name"])
    if len(shown) > MOST_ENDPOINTS:  # the fullest ones
        shown.sort(key=lambda each: (-each["inFlightRequests"], -(each["waiting"] or 0.0)))
    rows = [
        [
            each["endpoint"], each["name"], "yes" if each["ready"] else "no",
            f"{each['contact']}, stalls" if each["stalls"] else each["contact"], number(each["waiting"]),
            number(each["running"]), part(each["kvUsage"]), str(each["inFlightRequests"]),
            "-" if each["recentPrefixHit"] is None else part(each["recentPrefixHit"]),
        ]
        for each in shown[:MOST_ENDPOINTS]
    ]  # fmt: skip
    more = len(endpoints) - len(rows)
    return Section("Endpoints", [head, *rows], f"and {more} with fewer requests in flight" if more else "")


def _bands(bands: Sequence[Object]) -> Section:
    head = ["PRIORITY", "WAITING", "OF", "BYTES", "OF", "OLDEST", "LEAVE/S", "RETRY-AFTER"]
    rows = [
        [
            str(each["priority"]), str(each["requests"]), _limit(each["maxRequests"]), _bytes(each["bytes"]),
            "-" if each["maxBytes"] is None else _bytes(each["maxBytes"]),
            age(each["oldestWaitSeconds"]) if each["requests"] else "-", f"{each['dispatchRate']:.1f}",
            f"{each['retryAfterSeconds']}s",
        ]
        for each in bands
    ]  # fmt: skip
    return Section("Queue by band", [head, *rows])


def _flows(queue: Object) -> Section:
    head = ["TENANT", "PRIORITY", "WAITING", "BYTES", "IN FLIGHT", "OLDEST"]
    flows, others = queue["flows"], queue["otherFlows"]
    rows = [
        [
            each["tenant"], str(each["priority"]), str(each["requests"]), _bytes(each["bytes"]),
            str(each["inFlight"]), age(each["oldestWaitSeconds"]),
        ]
        for each in flows[:MOST_FLOWS]
    ]  # fmt: skip
    more = others["flows"] + len(flows[MOST_FLOWS:])
    waiting = others["requests"] + sum(each["requests"] for each in flows[MOST_FLOWS:])
    note = f"and {more} flows with {waiting} requests" if more else "" if rows else "nothing waits"
    return Section("Queue by tenant", [head, *rows], note)


def _limit(most: int | None) -> str:
    return "-" if most is None else str(most)


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f}{unit}" if unit == "B" or size >= 10 else f"{size:.1f}{unit}"
        size /= 1000
    return f"{size:.1f}GB"
