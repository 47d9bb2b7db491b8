"""What /debug/state says of latency prediction, as JSON values. It changes nothing."""

from collections.abc import Mapping
from typing import Any

from endpoint_picker.datalayer.metrics_page import engine_name
from endpoint_picker.datalayer.scrape_plan import ScrapePlan
from endpoint_picker.latency.desk import Desk
from endpoint_picker.latency.proof import Gain
from endpoint_picker.latency.reasons import Reason
from endpoint_picker.scheduling.plugin import Pool


def prediction_page(pool: Pool, scrape: ScrapePlan | None, *, enabled: bool) -> Mapping[str, Any]:
    """Return the section; `enabled`: the configuration has a producer of predictions."""
    desk = pool.desk
    settings, rate = desk.settings, desk.asked.rate(desk.clock())
    reason = desk.obstacle() if enabled else Reason.PREDICTED
    if enabled and not reason and desk.proof.is_out:
        reason = Reason.NO_GAIN
    engines, unclassed = _engines(pool, scrape)
    return {
        "enabled": enabled,
        "predicts": settings.predicts,
        "mode": "All" if settings.for_all else "OptIn",
        "streamingMode": settings.streaming,
        "quantile": settings.quantile,
        "holdoutPercent": settings.holdout_percent,
        "servers": 0 if desk.link is None else desk.link.servers,
        "serversAnswering": desk.answering,
        "state": desk.state.name.lower(),
        "version": desk.version,
        "routes": enabled and not reason,
        "reason": str(reason),
        "rate": {
            "requestsPerSecond": round(rate.requests, 3),
            "rowsPerSecond": round(rate.rows, 3),
            "callsPerSecond": round(rate.calls, 3),
        },
        "errors": _errors(desk),
        "isOutForNoGain": desk.proof.is_out,
        "gain": {"goodput": _gain(desk.proof.goodput), "latency": _gain(desk.proof.latency)},
        "requests": {str(reason) or "predicted": count for reason, count in desk.counts.items()},
        "samples": {
            "added": desk.samples.added,
            "dropped": desk.samples.dropped,
            "lost": desk.samples.lost,
            "sent": desk.samples.sent,
            "waiting": len(desk.samples),
        },
        "responses": {"streams": desk.figures.streams, "others": desk.figures.others},
        "mixesStreaming": desk.figures.mixes_streaming,
        "engines": engines,
        "enginesWithoutClass": unclassed,
    }


def _errors(desk: Desk) -> Mapping[str, Mapping[str, float]]:
    return {
        name: {
            "judged": each.judged,
            "medianAbsolute": round(each.median_absolute, 4),
            "median": round(each.median, 4),
            "withinBound": round(each.within_bound, 4),
        }
        for name, each in desk.accuracy.newest().items()
    }


def _gain(gain: Gain | None) -> Mapping[str, Any] | None:
    if gain is None:
        return None
    return {
        "mean": round(gain.mean, 4),
        "low": round(gain.low, 4),
        "high": round(gain.high, 4),
        "predicted": gain.predicted,
        "heuristic": gain.heuristic,
        "enough": gain.enough,
    }


def _engines(pool: Pool, scrape: ScrapePlan | None) -> tuple[list[str], list[str]]:
    """Return the kinds of engines, and of those that differ the ones on endpoints without a class."""
    if scrape is None:
        return [], []
    kinds, unclassed = set(), set()
    table, label = pool.table, pool.desk.board.class_label
    for row in table.occupied():
        endpoint = table.endpoints[row]
        if endpoint is None:
            continue
        kind = engine_name(endpoint.labels, scrape.engine_label_key, scrape.default_engine, scrape.engines)
        kinds.add(kind)
        if not label or not endpoint.labels.get(label):
            unclassed.add(kind)
    return sorted(kinds), sorted(unclassed) if len(kinds) > 1 else []
