"""The page /debug/explain: decisions of `Decisions` as JSON values. Pure; it changes nothing."""

from collections.abc import Generator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from endpoint_picker.datalayer.table import Rows
from endpoint_picker.observability.decisions import (
    KEPT,
    KEPT_WATCHED,
    NAME_LIMIT,
    WATCHED_S,
    Decisions,
    Kept,
    Run,
)
from endpoint_picker.outcomes import Outcome
from endpoint_picker.scheduling.profile import Profile

#: Decisions of one request id in an answer: clients may send an id many times.
MOST_EXPLAINED: Final = 8
DEFAULT_LIMIT: Final = 20
MOST_LISTED: Final = 500
#: Endpoints in an answer: the newest decision on the request has at most so many, and older decisions follow
#: while theirs fit.
MOST_ENDPOINTS: Final = 2_000
#: Digits of `limit` that are read.
_MAX_DIGITS: Final = 9
#: Endpoints, or decisions of a listing, between two pauses of `explaining`: a millisecond or two.
_AT_A_TIME: Final = 64

_PARAMETERS: Final = frozenset({"request_id", "limit", "endpoint", "refused"})


class BadQueryError(Exception):
    """The query cannot be answered; the text is a sentence for the user."""


Pausing = Generator[None, None, dict[str, Any]]
"""Work that yields where the caller may do something else, and returns the result."""


def explain_page(decisions: Decisions, query: Mapping[str, str], wall_clock: float) -> dict[str, Any]:
    """Return the page of `explaining` without a pause."""
    steps = explaining(decisions, query, wall_clock)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            page: dict[str, Any] = done.value
            return page


def explaining(decisions: Decisions, query: Mapping[str, str], wall_clock: float) -> Pausing:
    """Make the page; `wall_clock` is the time in seconds of the epoch, for the decisions' times.

    `request_id` returns that request's decisions in full. Without it the newest decisions are listed in
    short, `limit` of them, of those that `endpoint` and `refused` let through. Raises BadQueryError before
    the first pause. Decisions made during a pause are not in the page.
    """
    unknown = sorted(query.keys() - _PARAMETERS)
    if unknown:
        raise BadQueryError(f'unknown parameter "{unknown[0]}"; there are: {", ".join(sorted(_PARAMETERS))}')
    limit = _limit(query.get("limit", ""))
    refused = _flag("refused", query.get("refused", ""))
    endpoint, request_id = query.get("endpoint", ""), query.get("request_id", "")
    now = decisions.now
    if request_id:
        if limit or endpoint or refused is not None:
            raise BadQueryError("request_id stands alone: give either it, or limit, endpoint and refused")
        found = yield from _of_request(decisions, request_id, now, wall_clock)
        return _page(decisions, found, "" if found else _not_kept(decisions, request_id))
    listed = []
    for number, kept in enumerate(decisions.newest()):
        if number % _AT_A_TIME == _AT_A_TIME - 1:
            yield
        if refused is not None and (kept.refusal is not None) is not refused:
            continue
        if endpoint and endpoint not in kept.destination.split(","):
            continue
        listed.append(_summary(decisions, kept, now, wall_clock))
        if len(listed) == (limit or DEFAULT_LIMIT):
            break
    return _page(decisions, listed, "")


def _page(decisions: Decisions, found: list[dict[str, Any]], note: str) -> dict[str, Any]:
    return {"decisions": found, "note": note, "kept": len(decisions), "capacity": decisions.capacity}


def _not_kept(decisions: Decisions, request_id: str) -> str:
    return (
        f"no decision on request {request_id[:NAME_LIMIT]} is kept: the picker keeps its newest "
        f"{KEPT} decisions, and up to {KEPT_WATCHED} for {WATCHED_S / 60:g} minutes after a read of this "
        f"page; at present {decisions.capacity}"
    )


def _of_request(
    decisions: Decisions, request_id: str, now: float, wall_clock: float
) -> Generator[None, None, list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []
    endpoints = 0
    for kept in decisions.of_request(request_id):
        endpoints += kept.rows.size
        if len(found) == MOST_EXPLAINED or (found and endpoints > MOST_ENDPOINTS):
            break
        detail = yield from _detail(kept)
        wait = decisions.wait_of(request_id)
        queue = {} if wait is None else {"queue": wait._asdict()}
        found.append({**_summary(decisions, kept, now, wall_clock), **queue, **detail})
    return found


def _limit(text: str) -> int:
    if not text:
        return 0
    read = len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit()
    if not (read and 0 < int(text) <= MOST_LISTED):
        raise BadQueryError(f"limit is a number from 1 to {MOST_LISTED}")
    return int(text)


def _flag(name: str, text: str) -> bool | None:
    if not text:
        return None
    if text not in ("true", "false"):
        raise BadQueryError(f"{name} is true or false")
    return text == "true"


def _summary(decisions: Decisions, kept: Kept, now: float, wall_clock: float) -> dict[str, Any]:
    """Return one decision in short. Its status is that of the refusal or of the server's error, or None."""
    age = now - kept.at
    refusal = kept.refusal
    outcome = Outcome.PICKED if refusal is None else refusal.outcome
    status = decisions.failure_of(kept.request_id) if refusal is None else outcome.http_status
    primary, *fallbacks = kept.destination.split(",")
    return {
        "requestId": kept.request_id,
        "at": datetime.fromtimestamp(wall_clock - age, UTC).isoformat(timespec="milliseconds"),
        "ageSeconds": round(age, 3),
        "model": kept.model,
        "objective": kept.objective,
        "priority": kept.priority,
        "outcome": outcome.value,
        "status": status,
        "reason": "" if refusal is None else refusal.message,
        "endpoint": primary,
        "fallbacks": fallbacks,
        "candidates": int(kept.rows.size),
        "prefixHit": round(kept.prefix_hit, 3),
        "prefixSource": kept.prefix_source,
        "waited": kept.waited,
    }


def _detail(kept: Kept) -> Pausing:
    endpoints = []
    for number, row in enumerate(kept.rows[:MOST_ENDPOINTS].tolist()):
        if number % _AT_A_TIME == 0:
            yield
        endpoints.append(_endpoint(kept, row))
    profiles = []
    for run in kept.runs:
        if run.profile:
            profile = yield from _profile(kept, run)
            profiles.append(profile)
    return {
        "endpoints": endpoints,
        "profiles": profiles,
        "stagesLeftOut": _left_out(kept),
        **_prediction(kept),
    }


def _left_out(kept: Kept) -> list[str]:
    """Return the stages that no profile ran for: their decider said no, or no endpoint was left."""
    if kept.scheduling is None or kept.refusal is not None:
        return []
    stage_of, ran = kept.scheduling.handler.stage_of, {run.profile for run in kept.runs}
    stages = [stage_of(each.name) for each in kept.scheduling.profiles if each.name not in ran]
    return [stage for stage in stages if stage]


def _prediction(kept: Kept) -> dict[str, Any]:
    """Return what was predicted, or why nothing was; nothing when no prediction was to be made."""
    found = kept.prediction
    if found is None:
        return {}
    objectives = found.objectives
    shown: dict[str, Any] = {
        "reason": str(found.reason) or "predicted",
        "policy": found.policy.name.lower(),
        "ttftObjectiveSeconds": objectives.ttft_s or None,
        "tpotObjectiveSeconds": objectives.tpot_s or None,
    }
    if not found.reason:
        shown["model"] = "" if found.ticket is None else found.ticket.version
        shown["endpoints"] = [
            {
                "endpoint": _hostport(kept, row),
                "firstSeconds": _number(found.first[at]),
                "firstBoundSeconds": _number(found.first_bound[at]),
                "firstHeadroomSeconds": _number(found.first_headroom[at]),
                "tpotSeconds": _number(found.tpot[at]) if found.tpot.size else None,
                "tpotHeadroomSeconds": _number(found.tpot_headroom[at]),
            }
            for at, row in enumerate(found.rows[:MOST_ENDPOINTS].tolist())
        ]
    return {"prediction": shown}


def _endpoint(kept: Kept, row: int) -> dict[str, Any]:
    endpoint = kept.endpoints[row]
    signals = kept.signals
    return {
        "endpoint": _hostport(kept, row),
        "name": "" if endpoint is None else endpoint.name,
        "waiting": _number(signals.waiting[row]),
        "unseenRequests": int(kept.unseen[row]),
        "running": _number(signals.running[row]),
        "kvUsage": _number(signals.kv_usage[row]),
        "metricsAgeSeconds": _number(kept.at - signals.scraped_at[row]),
    }


def _profile(kept: Kept, run: Run) -> Pausing:
    profile = _found(kept, run.profile)
    before = kept.rows
    filters = []
    for name, left in zip(profile.filter_names, run.left, strict=False):
        filters.append({"name": name, "left": int(left.size), "cut": _hostports(kept, before, left)})
        before = left
        yield
    scored = []
    if run.picked >= 0:
        scored = yield from _scored(kept, run, profile)
    return {
        "name": run.profile,
        "stage": kept.scheduling.handler.stage_of(run.profile) if kept.scheduling else "",
        "filters": filters,
        "scorers": [{"name": each.name, "weight": each.weight} for each in profile.scorers],
        "picker": profile.picker_name,
        "picked": "" if run.picked < 0 else _hostport(kept, run.picked),
        "scored": scored,
    }


def _scored(kept: Kept, run: Run, profile: Profile) -> Generator[None, None, list[dict[str, Any]]]:
    """Return the scored endpoints, those of the highest total first."""
    answers = run.scores(len(profile.scorers))
    if answers is None:
        return []
    weighted = [scores * each.weight for scores, each in zip(answers, profile.scorers, strict=True)]
    total = sum(weighted, np.zeros(run.rows.size))
    names = [each.name for each in profile.scorers]
    scored = []
    for number, at in enumerate(np.argsort(-total, kind="stable")[:MOST_ENDPOINTS].tolist()):
        if number % _AT_A_TIME == 0:
            yield
        scores = {
            name: {"raw": _number(raw[at]), "weighted": _number(with_weight[at])}
            for name, raw, with_weight in zip(names, answers, weighted, strict=True)
        }
        endpoint = _hostport(kept, int(run.rows[at]))
        scored.append({"endpoint": endpoint, "total": _number(total[at]), "scores": scores})
    return scored


def _found(kept: Kept, name: str) -> Profile:
    assert kept.scheduling is not None  # noqa: S101 - a profile ran
    return next(each for each in kept.scheduling.profiles if each.name == name)


def _hostports(kept: Kept, before: Rows, left: Rows) -> list[str]:
    gone = np.setdiff1d(before, left)[:MOST_ENDPOINTS]
    return [_hostport(kept, row) for row in gone.tolist()]


def _hostport(kept: Kept, row: int) -> str:
    endpoint = kept.endpoints[row]
    return "" if endpoint is None else endpoint.hostport


def _number(value: np.float64) -> float | None:
    return round(float(value), 4) if np.isfinite(value) else None
