"""Gauges over the endpoint table, computed on every collection. They change nothing."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from endpoint_picker.datalayer.contact import count_contacts, count_missing
from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.observability.metrics import PickerMetrics, PoolFigures
from endpoint_picker.observability.series import Labels
from endpoint_picker.scheduling.plugin import Pool
from inference_api.offered import Offered


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
    )


def add_pool_gauges(
    metrics: PickerMetrics, name: str, pool: Pool, offered: Callable[[], Offered], scraping: ScrapeCounts
) -> None:
    """Add the gauges of single endpoints, of the prefix index, of scraping and of the texts offered."""
    table = pool.table

    def queues() -> Iterator[tuple[Labels, float]]:
        for row in table.ready_rows.tolist():
            if not np.isnan(table.waiting[row]):
                yield (name, table.hostports[row]), float(table.waiting[row])

    def column(values: NDArray[np.generic]) -> Iterator[tuple[Labels, float]]:
        for row in table.occupied():
            endpoint = table.endpoints[row]
            if endpoint is not None:
                yield (endpoint.name, endpoint.namespace, str(endpoint.port)), float(values[row])

    metrics.read_each(
        "per_endpoint_queue_size", "Waiting requests.", ("name", "model_server_endpoint"), queues
    )
    metrics.read_each(
        "endpoint_contacts",
        "Ready endpoints, by how they answer scrapes.",
        ("name", "port", "contact"),
        lambda: (((name, str(port), contact.label), count) for port, contact, count in count_contacts(table)),
    )
    metrics.read_each(
        "endpoints_missing_signal",
        "Ready endpoints whose metrics page lacks a configured signal.",
        ("name", "signal"),
        lambda: (((name, signal.label), count) for signal, count, _total in count_missing(table)),
    )
    where = ("endpoint_name", "namespace", "port")
    metrics.read_each(
        "inflight_requests", "Reserved requests.", where, lambda: column(table.inflight_requests)
    )
    metrics.read_each("inflight_tokens", "Reserved tokens.", where, lambda: column(table.inflight_tokens))
    metrics.read("prefix_indexer_size", "Entries of the prefix index.", lambda: pool.index.entries)
    metrics.read("datalayer_scrapes", "Metrics pages read.", scraping.scrapes)
    metrics.read("datalayer_scrape_failures", "Scrapes without a page.", scraping.failures)
    metrics.read(
        "config_valid", "1: the configuration offered last is in use.", lambda: not offered().config.error
    )
    metrics.read(
        "priorities_valid",
        "1: the priorities offered last are in use.",
        lambda: not offered().priorities.error,
    )


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else 0.0
