"""Gauges over the endpoint table, computed on every collection. They change nothing."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from endpoint_picker.datalayer.contact import count_contacts, count_missing
from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.observability.metrics import PickerMetrics, PoolFigures
from endpoint_picker.observability.series import Labels
from endpoint_picker.scheduling.handlers.disaggregated import DisaggProfileHandler, PdProfileHandler
from endpoint_picker.scheduling.plugin import Pool
from endpoint_picker.scheduling.scheduler import Scheduler
from inference_api.offered import Offered

#: Name and type of the plugin that fills the prefix index.
_PREFIX_PRODUCER: Final = ("approx-prefix-cache-producer", "approx-prefix-cache-producer")


class ScrapeCounts(NamedTuple):
    """Readers of the scraper's counters."""

    scrapes: Callable[[], int]
    failures: Callable[[], int]


def pool_figures(table: EndpointTable) -> PoolFigures:
    """Return the averages over the ready endpoints, without endpoints whose metrics are unknown."""
    rows = table.ready_rows
    return PoolFigures(
        ready_endpoints=int(rows.size),
        average_queue_size=_mean(table.waiting[rows]),
        average_running_requests=_mean(table.running[rows]),
        average_kv_cache_utilisation=_mean(table.kv_usage[rows]),
        std_dev_queue_size=_std_dev(table.waiting[rows]),
        std_dev_running_requests=_std_dev(table.running[rows]),
        std_dev_kv_cache_utilisation=_std_dev(table.kv_usage[rows]),
    )


def add_pool_gauges(
    metrics: PickerMetrics,
    name: str,
    scheduler: Scheduler,
    offered: Callable[[], Offered],
    scraping: ScrapeCounts,
) -> None:
    """Add the gauges of single endpoints, of the prefix index, of scraping, of objectives and texts."""
    pool = scheduler.pool
    table = pool.table

    def queues() -> Iterator[tuple[Labels, float]]:
        for row in table.ready_rows.tolist():
            if not np.isnan(table.waiting[row]):
                endpoint = table.endpoints[row]
                yield (name, "" if endpoint is None else endpoint.name), float(table.waiting[row])

    def column(values: NDArray[np.generic]) -> Iterator[tuple[Labels, float]]:
        for row in table.occupied():
            endpoint = table.endpoints[row]
            if endpoint is not None:
                yield (endpoint.name, endpoint.namespace, str(endpoint.port)), float(values[row])

    metrics.read_each("per_endpoint_queue_size", queues)
    metrics.read_each(
        "endpoint_contacts",
        lambda: (((name, str(port), contact.label), count) for port, contact, count in count_contacts(table)),
    )
    metrics.read_each(
        "endpoints_missing_signal",
        lambda: (((name, signal.label), count) for signal, count, _total in count_missing(table)),
    )
    metrics.read_each("inflight_requests", lambda: column(table.inflight_requests))
    metrics.read_each("inflight_tokens", lambda: column(table.inflight_tokens))
    metrics.read_each("inflight_decode_tokens", lambda: column(np.array(table.decode_tokens)))
    for family, handler in _DECISIONS.items():
        metrics.read_each(family, partial(_decisions, pool, handler))
    metrics.read_each("disagg_stages_dropped_total", pool.stages.dropped.items)
    metrics.read("prefix_indexer_size", lambda: pool.index.entries, _PREFIX_PRODUCER)
    metrics.read("datalayer_poll_errors_total", scraping.failures, ("metrics-data-source",))
    metrics.read("datalayer_scrapes", scraping.scrapes)
    metrics.read("datalayer_scrape_failures", scraping.failures)
    metrics.read_each(
        "unknown_objectives_total",
        lambda: [((source.value,), count) for source, count in scheduler.unknown_objectives.items()],
    )
    metrics.read("config_valid", lambda: not offered().config.error)
    metrics.read("priorities_valid", lambda: not offered().priorities.error)


#: Family -> the handler whose decisions it counts.
_DECISIONS: Final = {
    "disagg_decision_total": DisaggProfileHandler.type_name,
    "pd_decision_total": PdProfileHandler.type_name,
}


def _decisions(pool: Pool, handler: str) -> Iterator[tuple[Labels, float]]:
    for (kind, model, decision_type), count in pool.stages.items():
        if kind == handler:
            yield (kind, kind, model, decision_type), count


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else 0.0


def _std_dev(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.std()) if known.size else 0.0
