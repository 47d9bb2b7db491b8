"""Metrics of the KV index, of the events behind it and of the prompts' tokens, read on every collection.

The families of the index are filled where the configuration asks for them, those of events while events are
followed.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

from endpoint_picker.observability.metrics import PickerMetrics
from endpoint_picker.observability.series import Labels
from endpoint_picker.scheduling.plugin import Pool

#: Name and type of the plugin that keeps the index of media.
_MEDIA_PRODUCER: Final = ("mm-embeddings-cache-producer", "mm-embeddings-cache-producer")
#: Label of errors on sockets that are not one publisher's.
_ALL: Final = "all"


class Subscriber(Protocol):
    """What of the sockets is shown."""

    @property
    def errors(self) -> Mapping[str, int]:
        """Return the operations on sockets that failed, by operation."""
        ...

    @property
    def active(self) -> int:
        """Return how many sources are followed."""
        ...

    @property
    def queued(self) -> int:
        """Return how many replays wait for their turn."""
        ...

    def reconnections(self) -> list[tuple[str, int]]:
        """Return of each source how often its connection was made again."""
        ...


def add_kv_metrics(
    metrics: PickerMetrics, pool: Pool, subscriber: Callable[[], Subscriber | None], replays: int
) -> None:
    """Add all families; `replays` is how many replays may run at a time."""
    kv, sources, tokenizing, media = pool.kv, pool.kv_sources, pool.tokenizing, pool.media

    def of_index(name: str, value: Callable[[], int]) -> None:
        def read() -> Iterator[tuple[Labels, float]]:
            if kv.shows_metrics:
                yield (), value()

        metrics.read_each(f"kv_cache_index_{name}", read)

    of_index("admissions_total", lambda: kv.admitted)
    of_index("evictions_total", lambda: kv.evicted)
    of_index("lookup_requests_total", lambda: kv.lookups)
    of_index("lookup_hits_total", lambda: kv.lookup_hits)
    of_index("max_pod_hit_count_total", lambda: kv.lookup_max_hits)
    kv.on_lookup = metrics.histogram("kv_cache_index_lookup_latency_seconds").observe

    def of_events(name: str, values: Callable[[], list[tuple[Labels, float]]]) -> None:
        metrics.read_each(name, lambda: values() if sources.plan is not None else [])

    def of_subscriber(name: str, values: Callable[[Subscriber], list[tuple[Labels, float]]]) -> None:
        def read() -> list[tuple[Labels, float]]:
            current = subscriber()
            return [] if current is None or sources.plan is None else values(current)

        metrics.read_each(name, read)

    counts = sources.counts
    removed = "kv_cache_events_dedup_removed_hashes"
    of_events(f"{removed}_suppressed_total", lambda: [((), counts.suppressed)])
    of_events(f"{removed}_forwarded_total", lambda: [((), counts.forwarded)])
    of_events("kv_cache_events_stores_skipped_total", lambda: list(counts.stores_skipped.items()))
    of_events("kv_cache_events_removals_skipped_total", lambda: list(counts.removals_skipped.items()))
    of_events(
        "kv_cache_events_messages_received_total",
        lambda: [((name,), count) for name, count in sources.received.items()],
    )
    of_subscriber("kv_cache_events_active_subscribers", lambda current: [((), current.active)])
    of_subscriber(
        "kv_cache_events_subscriber_reconnections_total",
        lambda current: [((name,), count) for name, count in current.reconnections()],
    )
    of_subscriber(
        "kv_cache_events_zmq_errors_total",
        lambda current: [((_ALL, operation), count) for operation, count in current.errors.items()],
    )
    of_subscriber("kv_cache_events_pool_queue_depth", lambda current: [((), current.queued)])
    of_events("kv_cache_events_pool_capacity", lambda: [((), replays)])
    of_events("kv_cache_index_entries", lambda: [((), kv.entries)])
    of_events("kv_cache_events_streams", lambda: _streams(pool))
    of_events(
        "kv_cache_events_unreadable_total",
        lambda: [
            (("malformed",), sources.malformed),
            (("unknown-type",), sources.unknown),
            (("unknown-server",), sources.strangers),
        ],
    )
    metrics.read_each(
        "prefix_match_source_total", lambda: [((source,), count) for source, count in kv.answers.items()]
    )
    metrics.read_each(
        "prompt_tokens_total", lambda: [((source,), count) for source, count in tokenizing.results.items()]
    )

    def trusted() -> list[tuple[Labels, float]]:
        return [] if tokenizing.plan is None else [((), tokenizing.is_trusted)]

    metrics.read_each("tokenizer_trusted", trusted)
    metrics.read_each(
        "encoder_cache_queries_total",
        lambda: [((*_MEDIA_PRODUCER, kind), count) for kind, count in media.queries.items()],
    )
    metrics.read_each(
        "encoder_cache_hits_total",
        lambda: [((*_MEDIA_PRODUCER, kind), count) for kind, count in media.hits.items()],
    )


def _streams(pool: Pool) -> list[tuple[Labels, float]]:
    complete = [source.stream.complete for source in pool.kv_sources]
    return [(("complete",), sum(complete)), (("partial",), len(complete) - sum(complete))]
