"""The page /debug/state: the state behind a pool's decisions, as JSON values. It changes nothing."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from endpoint_picker.config.live import LiveConfig
from endpoint_picker.datalayer.contact import Contact, nowhere_found
from endpoint_picker.datalayer.metrics_page import Signal
from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.observability.prediction_page import prediction_page
from endpoint_picker.scheduling.plugin import Pool
from endpoint_picker.scheduling.producers.predicted_latency import PredictedLatencyProducer
from endpoint_picker.scheduling.scheduler import Scheduler


def state_page(scheduler: Scheduler, live: LiveConfig, prefix_hits: Mapping[str, float]) -> dict[str, Any]:
    """Return the page; `prefix_hits` are the mean prefix hits of recent picks, by endpoint."""
    pool, profile = scheduler.pool, scheduler.scheduling.profiles[0]
    offered = live.offered.model_dump(mode="json")
    return {
        "endpoints": [_row(pool, row, prefix_hits) for row in pool.table.occupied()],
        "signalsFoundNowhere": list(nowhere_found(pool.table)),
        "inFlight": pool.ledger.held,
        "saturation": scheduler.saturation(),
        "profile": {
            "name": profile.name,
            "filters": len(profile.filters),
            "scorers": {each.name: each.weight for each in profile.scorers},
        },
        "config": {**offered["config"], "warnings": list(live.config.warnings), "loads": live.config_loads},
        "priorities": {
            **offered["priorities"],
            "table": dict(live.objectives.priorities),
            "defaultObjective": live.table.default_objective,
            "modelObjectives": dict(live.table.model_objectives),
        },
        "latencyPrediction": prediction_of(scheduler, live),
        "prefixIndex": {
            "entries": pool.index.entries,
            "blockTokens": pool.index.block_tokens,
            "promptBlocks": scheduler.prompt_blocks,
            "matchedBlocks": scheduler.matched_blocks,
        },
        "kvIndex": _kv_index(pool),
    }


def prediction_of(scheduler: Scheduler, live: LiveConfig) -> Mapping[str, Any]:
    """Return the section on prediction."""
    enabled = any(isinstance(each, PredictedLatencyProducer) for each in scheduler.scheduling.plugins)
    return prediction_page(scheduler.pool, live.config.scrape, enabled=enabled)


def _kv_index(pool: Pool) -> Mapping[str, Any] | None:
    """Return what KV events told; None when they are not followed."""
    kv, sources = pool.kv, pool.kv_sources
    if sources.plan is None:
        return None
    return {
        "entries": kv.entries,
        "blockTokens": kv.block_tokens,
        "models": sorted(kv.models),
        "tokenizerTrusted": pool.tokenizing.is_trusted,
        "sources": [
            {
                "name": source.name,
                "complete": source.stream.complete,
                "blocks": len(source.blocks),
                "gaps": source.stream.gaps,
                "restarts": source.stream.restarts,
            }
            for source in sources
        ],
    }


def _row(pool: Pool, row: int, prefix_hits: Mapping[str, float]) -> Mapping[str, Any]:
    table, endpoint = pool.table, pool.table.endpoints[row]
    age = pool.clock() - float(table.scraped_at[row])
    return {
        "endpoint": table.hostports[row],
        "name": endpoint.name if endpoint else "",
        "ready": bool(table.ready[row]),
        "contact": Contact(table.contact[row]).label,
        "waiting": _number(table.waiting[row]),
        "running": _number(table.running[row]),
        "kvUsage": _number(table.kv_usage[row]),
        "metricsAgeSeconds": round(age, 3) if np.isfinite(age) else None,
        "inFlightRequests": int(table.inflight_requests[row]),
        "recentPrefixHit": round(hit, 3)
        if (hit := prefix_hits.get(table.hostports[row])) is not None
        else None,
        "inFlightTokens": int(table.inflight_tokens[row]),
        "decodeTokens": table.decode_tokens[row],
        "unseenRequests": int(table.unseen[row]),
        "blockSize": int(table.block_size[row]),
        "numBlocks": int(table.num_blocks[row]),
        "adapters": _adapters(pool.table, row),
        "attributes": {
            f"{producer}/{name}": value for (producer, name), value in table.attributes.of_row(row).items()
        },
        "stalls": pool.progress.stalls(row),
        "pageStandsStill": row in pool.progress.still,
        "missingSignals": [each.label for each in Signal if each & int(table.missing[row])],
    }


def _adapters(table: EndpointTable, row: int) -> Mapping[str, Any] | None:
    """Return the row's LoRA adapters; None when its page does not show any slots."""
    slots = int(table.adapters.slots[row])
    return {"slots": slots, "resident": sorted(table.adapters.of_row(row))} if slots else None


def _number(value: np.float64) -> float | None:
    return None if np.isnan(value) else float(value)
