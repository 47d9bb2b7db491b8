"""Every metric family of the picker: name, labels, buckets, and the deprecated name that dashboards may use.

The one home of metric names; `docs/metrics_page.py` writes docs/metrics.md from it. Names, labels and buckets
are the ecosystem's, unless `own` is set.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from endpoint_picker.latency.accuracy import ERROR_BOUNDS, SECOND_BOUNDS
from endpoint_picker.latency.figures import TOOK_BOUNDS
from latency_contract.schema import Target

PREFIX: Final = "llm_d_epp_"

_M: Final = ("model_name", "target_model_name", "fairness_id", "priority")
_LATENCY: Final = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60, 120,
    180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600,
)  # fmt: skip
_TTFT: Final = tuple(bound for bound in _LATENCY if bound <= 120)
_NTPOT: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_TPOT: Final = (
    0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8,
    1, 2,
)  # fmt: skip
_GAP: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2)
_FAST: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_QUEUE: Final = (
    0.0001, 0.0005, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60,
)  # fmt: skip
_PROCESSING: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_REQUEST_BYTES: Final = tuple(2**power for power in range(6, 31))
# 32778 is the ecosystem's own typing error; with 32768 the buckets of two pickers would not add up.
_RESPONSE_BYTES: Final = (1, *(2**power for power in range(3, 15)), 32778, 65536)
_TOKENS: Final = (1, *(2**power for power in range(3, 15)), 32778, *(2**power for power in range(16, 21)))
#: Those of Prometheus' clients.
_DEFAULT: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_OUTPUT_TOKENS: Final = (1, *(2**power for power in range(3, 14)))


class Kind(Enum):
    """The type that Prometheus reads."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Twin:
    """The deprecated name of a family. Its series are sums over the labels that it lacks."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    """(label of the family, its name in the twin)."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family."""

    name: str
    """Without PREFIX; a counter's ends in _total."""
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: Sequence[float] = ()
    twin: Twin | None = None
    own: bool = False
    """No other picker has it."""

    @property
    def full_name(self) -> str:
        """Return the name on the page."""
        return PREFIX + self.name


def _same(*labels: str) -> tuple[tuple[str, str], ...]:
    return tuple((label, label) for label in labels)


_OLD_M: Final = _same("model_name", "target_model_name")
_COUNTER, _GAUGE, _HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM


def _of_model(
    name: str, text: str, buckets: Sequence[float], twin: str, more: tuple[str, ...] = ()
) -> Family:
    old = Twin("inference_objective_" + twin, _OLD_M) if twin else None
    return Family(name, _HISTOGRAM, text, (*_M, *more), buckets, old)


def _of_pool(name: str, text: str, twin: str = "") -> Family:
    return Family(
        name, _GAUGE, text, ("name",), twin=Twin("inference_pool_" + twin, _same("name")) if twin else None
    )


_REWRITTEN: Final = ("model_rewrite_name", "model_name", "target_model")
_STAGES: Final = ("plugin_name", "plugin_type", "model_name", "decision_type")


def _of_stages(name: str, text: str) -> Family:
    twin = Twin("llm_d_inference_scheduler_" + name, _same(*_STAGES))
    return Family(name, _COUNTER, text, _STAGES, twin=twin)


def _of_kv_index(name: str, text: str, twin: str) -> Family:
    return Family(f"kv_cache_index_{name}", _COUNTER, text, twin=Twin("kvcache_index_" + twin))


def _predicted(name: str, text: str, buckets: Sequence[float], twin: str) -> Family:
    labels = ("model_name", "target_model_name")
    own = "observed" in name
    return Family(name, _HISTOGRAM, text, labels, buckets, Twin("inference_objective_" + twin, _OLD_M), own)


_ENDPOINT: Final = ("endpoint_name", "namespace", "port")
_POOL_AND_MODEL: Final = ("inference_pool", "model_name", "target_model_name")


def _flow_twin(name: str, *labels: str) -> Twin:
    return Twin(f"inference_extension_flow_control_{name}", _same(*labels))


_ALL: Final = (
    Family(
        "request_total",
        _COUNTER,
        "Requests that were routed or refused.",
        _M,
        twin=Twin("inference_objective_request_total", (*_OLD_M, ("priority", "priority"))),
    ),
    Family(
        "request_error_total",
        _COUNTER,
        "Requests that failed, by code.",
        (*_M, "error_code"),
        twin=Twin("inference_objective_request_error_total", (*_OLD_M, ("error_code", "error_code"))),
    ),
    Family(
        "request_running",
        _GAUGE,
        "Requests at model servers.",
        _M,
        twin=Twin("inference_objective_running_requests", _same("model_name")),
    ),
    _of_model("request_duration_seconds", "From headers to the end.", _LATENCY, "request_duration_seconds"),
    _of_model("request_size_bytes", "Size of request bodies.", _REQUEST_BYTES, "request_sizes"),
    _of_model("response_size_bytes", "Size of response bodies.", _RESPONSE_BYTES, "response_sizes"),
    _of_model("request_input_tokens", "Prompt tokens as reported.", _TOKENS, "input_tokens"),
    _of_model("request_output_tokens", "Generated tokens as reported.", _OUTPUT_TOKENS, "output_tokens"),
    _of_model(
        "request_cached_tokens",
        "Prompt tokens found in the cache, as reported.",
        _TOKENS,
        "prompt_cached_tokens",
    ),
    _of_model(
        "request_ntpot_seconds",
        "Duration over output tokens.",
        _NTPOT,
        "normalized_time_per_output_token_seconds",
    ),
    _of_model(
        "request_ttft_seconds",
        "To the first token; without a stream, to the first byte.",
        _TTFT,
        "",
        ("streaming",),
    ),
    _of_model("request_streaming_tpot_seconds", "Time per output token after the first.", _TPOT, ""),
    _of_model("request_streaming_itl_seconds", "Between tokens of a streamed response.", _GAP, ""),
    Family(
        "request_processing_duration_seconds",
        _HISTOGRAM,
        "From headers to the decision, a wait included.",
        buckets=_PROCESSING,
    ),
    Family(
        "scheduler_e2e_duration_seconds",
        _HISTOGRAM,
        "Time to decide on a request.",
        buckets=_FAST,
        twin=Twin("inference_extension_scheduler_e2e_duration_seconds"),
    ),
    Family(
        "info",
        _GAUGE,
        "1, with the version of the picker.",
        ("commit", "build_ref"),
        twin=Twin("inference_extension_info", _same("commit", "build_ref")),
    ),
    _of_pool("ready_endpoints", "Endpoints that may be picked.", "ready_pods"),
    _of_pool("average_queue_size", "Waiting requests an endpoint.", "average_queue_size"),
    _of_pool("average_running_requests", "Running requests an endpoint.", "average_running_requests"),
    _of_pool("average_kv_cache_utilization", "KV-cache utilisation, 0 to 1.", "average_kv_cache_utilization"),
    _of_pool("std_dev_queue_size", "Standard deviation of waiting requests between endpoints."),
    _of_pool("std_dev_running_requests", "Standard deviation of running requests between endpoints."),
    _of_pool("std_dev_kv_cache_utilization", "Standard deviation of KV-cache utilisation between endpoints."),
    Family(
        "per_endpoint_queue_size",
        _GAUGE,
        "Waiting requests.",
        ("name", "model_server_endpoint"),
        twin=Twin(
            "inference_pool_per_pod_queue_size",
            (("name", "name"), ("model_server_endpoint", "model_server_pod")),
        ),
    ),
    Family("inflight_requests", _GAUGE, "Reserved requests.", _ENDPOINT),
    Family("inflight_tokens", _GAUGE, "Reserved tokens.", _ENDPOINT),
    Family(
        "inflight_decode_tokens",
        _GAUGE,
        "The part of inflight_tokens that stays reserved until the end of the requests.",
        _ENDPOINT,
        own=True,
    ),
    _of_stages("disagg_decision_total", "Decisions of disagg-profile-handler, by the stages that they have."),
    _of_stages("pd_decision_total", "Decisions of pd-profile-handler, by the stages that they have."),
    Family(
        "disagg_stages_dropped_total",
        _COUNTER,
        "Stages that a decider wanted, and that no endpoint was left for.",
        ("plugin_type", "stage"),
        own=True,
    ),
    Family(
        "prefix_indexer_size",
        _GAUGE,
        "Entries of the prefix index.",
        ("plugin_name", "plugin_type"),
        twin=Twin("inference_extension_prefix_indexer_size", _same("plugin_name", "plugin_type")),
    ),
    Family(
        "datalayer_poll_errors_total",
        _COUNTER,
        "Scrapes without a page.",
        ("source_type",),
        twin=Twin("llm_d_inference_scheduler_datalayer_poll_errors_total", _same("source_type")),
    ),
    Family(
        "flow_control_request_queue_duration_seconds",
        _HISTOGRAM,
        "Time in the queue, by how it ended; 0 for a request that did not wait.",
        ("fairness_id", "priority", "outcome", *_POOL_AND_MODEL),
        _QUEUE,
        _flow_twin("request_queue_duration_seconds", "fairness_id", "priority", "outcome", *_POOL_AND_MODEL),
    ),
    *[
        Family(
            f"flow_control_queue_{name}",
            _GAUGE,
            text,
            ("fairness_id", "priority", *_POOL_AND_MODEL),
            twin=_flow_twin(f"queue_{name}", "fairness_id", "priority", *_POOL_AND_MODEL),
        )
        for name, text in (("size", "Requests that wait."), ("bytes", "Bytes of bodies that wait."))
    ],
    Family(
        "flow_control_pool_saturation",
        _GAUGE,
        "Load over capacity, by stage; effective is the fuller stage.",
        ("inference_pool", "stage"),
        twin=_flow_twin("pool_saturation", "inference_pool", "stage"),
    ),
    Family(
        "flow_control_stale_endpoints",
        _GAUGE,
        "Endpoints whose metrics were too old when the pool was last saturated.",
        ("detector",),
    ),
    *[
        Family(
            f"flow_control_{part}capacity_utilization_{of}",
            _GAUGE,
            f"{of.capitalize()} that wait over the limit{' of all bands' if part else ''}.",
            ("inference_pool",) if part else ("priority", "inference_pool"),
        )
        for part in ("", "global_")
        for of in ("requests", "bytes")
    ],
    Family(
        "flow_control_requests_total",
        _COUNTER,
        "Requests that left the queue or were refused by it, by outcome.",
        ("outcome", "priority", "inference_pool"),
    ),
    Family(
        "flow_control_revocations_issued_total",
        _COUNTER,
        "Requests that were taken back from their servers for more important ones, by their priority.",
        ("priority", "inference_pool"),
    ),
    Family(
        "flow_control_failed_open_endpoints",
        _GAUGE,
        "Endpoints judged by their requests in flight alone, as their metrics stay away.",
        ("inference_pool",),
        own=True,
    ),
    Family(
        "flow_control_oldest_wait_seconds",
        _GAUGE,
        "Wait of the oldest request of a band.",
        ("priority", "inference_pool"),
        own=True,
    ),
    Family(
        "flow_control_dispatch_rate",
        _GAUGE,
        "Requests that leave in a second, a mean over some ten seconds.",
        ("inference_pool",),
        own=True,
    ),
    Family(
        "flow_control_flows",
        _GAUGE,
        "Flows kept: busy ones have requests, idle ones a standing.",
        ("inference_pool", "state"),
        own=True,
    ),
    _of_kv_index("admissions_total", "Blocks that servers stored.", "admissions_total"),
    _of_kv_index("evictions_total", "Blocks that servers dropped.", "evictions_total"),
    _of_kv_index("lookup_requests_total", "Prompts looked up.", "lookup_requests_total"),
    _of_kv_index("lookup_hits_total", "Prompts of which a server held a block.", "lookup_hits_total"),
    _of_kv_index("max_pod_hit_count_total", "Blocks found on the best server.", "max_pod_hit_count_total"),
    Family(
        "kv_cache_index_lookup_latency_seconds",
        _HISTOGRAM,
        "Time to look a prompt up.",
        buckets=_DEFAULT,
        twin=Twin("kvcache_index_lookup_latency_seconds"),
    ),
    Family(
        "kv_cache_events_dedup_removed_hashes_suppressed_total",
        _COUNTER,
        "Removals of blocks that were stored more than once, and stay.",
        twin=Twin("kvcache_kvevents_dedup_removed_hashes_suppressed_total"),
    ),
    Family(
        "kv_cache_events_dedup_removed_hashes_forwarded_total",
        _COUNTER,
        "Removals of blocks that did not stay.",
        twin=Twin("kvcache_kvevents_dedup_removed_hashes_forwarded_total"),
    ),
    Family(
        "kv_cache_events_stores_skipped_total",
        _COUNTER,
        "Stores that were left out, by kind of cache and reason.",
        ("cache_kind", "reason"),
    ),
    Family(
        "kv_cache_events_removals_skipped_total",
        _COUNTER,
        "Removals that were left out.",
        ("cache_kind", "reason"),
    ),
    Family("kv_cache_events_active_subscribers", _GAUGE, "Publishers that are followed."),
    Family(
        "kv_cache_events_subscriber_reconnections_total",
        _COUNTER,
        "Connections made again.",
        ("pod_identifier",),
    ),
    Family(
        "kv_cache_events_messages_received_total",
        _COUNTER,
        "Messages of publishers.",
        ("pod_identifier",),
    ),
    Family(
        "kv_cache_events_zmq_errors_total",
        _COUNTER,
        "Failed operations on sockets; all publishers together.",
        ("pod_identifier", "operation"),
    ),
    Family("kv_cache_events_pool_queue_depth", _GAUGE, "Replays of old messages that wait for their turn."),
    Family("kv_cache_events_pool_capacity", _GAUGE, "Replays at a time."),
    Family("kv_cache_index_entries", _GAUGE, "Blocks of the KV index, a server's each.", own=True),
    Family(
        "kv_cache_events_streams",
        _GAUGE,
        "Publishers by what is known of them: complete, partial.",
        ("state",),
        own=True,
    ),
    Family(
        "kv_cache_events_unreadable_total",
        _COUNTER,
        "Messages and events that cannot be read, or are of a type or a server that is not known.",
        ("reason",),
        own=True,
    ),
    Family(
        "prefix_match_source_total",
        _COUNTER,
        "Prompts by the index that their matches come from.",
        ("source",),
        own=True,
    ),
    Family(
        "prompt_tokens_total",
        _COUNTER,
        "Prompts by where their tokens come from, or why they are not known.",
        ("source",),
        own=True,
    ),
    Family("tokenizer_trusted", _GAUGE, "1: requests wait for their tokens.", own=True),
    Family(
        "encoder_cache_queries_total",
        _COUNTER,
        "Images, videos and audio of prompts.",
        ("plugin_type", "plugin_name", "modality"),
    ),
    Family(
        "encoder_cache_hits_total",
        _COUNTER,
        "Those that the picked server was believed to have encoded before.",
        ("plugin_type", "plugin_name", "modality"),
    ),
    Family(
        "unknown_objectives_total",
        _COUNTER,
        "Requests of priority 0 because their objective is unknown; reason: whether the header, the model's "
        "mapping or the default names it.",
        ("reason",),
        own=True,
    ),
    Family(
        "model_rewrite_decisions_total",
        _COUNTER,
        "Requests whose model a rule of an InferenceModelRewrite chose; model_name is * for a rule for all.",
        _REWRITTEN,
        twin=Twin("inference_extension_model_rewrite_decisions_total", _same(*_REWRITTEN)),
    ),
    Family("extproc_streams_inflight", _GAUGE, "Open ext-proc streams."),
    Family("decisions_total", _COUNTER, "Decisions, by outcome.", ("outcome",), own=True),
    Family("exchanges_total", _COUNTER, "Exchanges over, by how they ended.", ("ending",), own=True),
    Family("failed_handshakes_total", _COUNTER, "TLS handshakes that failed, by kind.", ("kind",), own=True),
    Family(
        "served_elsewhere_total", _COUNTER, "Responses from another endpoint than the one picked.", own=True
    ),
    Family(
        "endpoint_contacts",
        _GAUGE,
        "Ready endpoints, by how they answer scrapes.",
        ("name", "port", "contact"),
        own=True,
    ),
    Family(
        "endpoints_missing_signal",
        _GAUGE,
        "Ready endpoints whose metrics page lacks a configured signal.",
        ("name", "signal"),
        own=True,
    ),
    Family("datalayer_scrapes", _GAUGE, "Metrics pages read.", own=True),
    Family("datalayer_scrape_failures", _GAUGE, "Scrapes without a page.", own=True),
    Family("held_body_bytes", _GAUGE, "Request bodies held.", own=True),
    _predicted(
        "request_observed_ttft_seconds",
        "First byte as predicted-latency-producer sees it: in a pool "
        "without streaming mode the time to the end.",
        SECOND_BOUNDS[Target.TTFT],
        "request_ttft_seconds",
    ),
    _predicted(
        "request_predicted_ttft_seconds",
        "Predicted median of it.",
        SECOND_BOUNDS[Target.TTFT],
        "request_predicted_ttft_seconds",
    ),
    _predicted(
        "request_observed_tpot_seconds",
        "Time per output token after the first.",
        SECOND_BOUNDS[Target.TPOT],
        "request_tpot_seconds",
    ),
    _predicted(
        "request_predicted_tpot_seconds",
        "Predicted median of it.",
        SECOND_BOUNDS[Target.TPOT],
        "request_predicted_tpot_seconds",
    ),
    _predicted(
        "request_ttft_prediction_duration_seconds",
        "From the question to its answer.",
        TOOK_BOUNDS,
        "request_ttft_prediction_duration_seconds",
    ),
    _predicted(
        "request_tpot_prediction_duration_seconds",
        "The same: one answer has both.",
        TOOK_BOUNDS,
        "request_tpot_prediction_duration_seconds",
    ),
    Family(
        "request_ttft_slo_violation_total",
        _COUNTER,
        "Requests that missed their TTFT objective.",
        ("model_name", "target_model_name"),
        twin=Twin("inference_objective_request_ttft_slo_violation_total", _OLD_M),
        own=True,
    ),
    Family(
        "request_slo_violation_total",
        _COUNTER,
        "Requests that missed an objective, by type.",
        ("model_name", "target_model_name", "type"),
        twin=Twin("inference_objective_request_slo_violation_total", (*_OLD_M, ("type", "type"))),
    ),
    Family(
        "inference_request_metric",
        _GAUGE,
        "Values of the newest request, by type.",
        ("model_name", "target_model_name", "type"),
        twin=Twin("inference_objective_inference_request_metric", (*_OLD_M, ("type", "type"))),
    ),
    Family(
        "prediction_relative_error",
        _HISTOGRAM,
        "(actual - predicted) / predicted median.",
        ("type", "regime"),
        ERROR_BOUNDS,
        own=True,
    ),
    Family(
        "prediction_judged_total",
        _COUNTER,
        "Requests whose prediction was judged.",
        ("type", "regime"),
        own=True,
    ),
    Family(
        "prediction_within_bound_total",
        _COUNTER,
        "Of these, those that took no longer than the upper bound.",
        ("type", "regime"),
        own=True,
    ),
    Family(
        "prediction_requests_total",
        _COUNTER,
        "Picked requests, by why they had no prediction.",
        ("reason",),
        own=True,
    ),
    Family("prediction_calls_total", _COUNTER, "Answers of prediction servers.", own=True),
    Family("prediction_state", _GAUGE, "1 for the state in the newest answer.", ("state",), own=True),
    Family(
        "prediction_gain",
        _GAUGE,
        "Gain over the heuristic and its 95 % interval: goodput as a difference, latency as a part.",
        ("kind", "value"),
        own=True,
    ),
    Family("prediction_gain_requests", _GAUGE, "Requests that the gain rests on.", ("kind", "arm"), own=True),
    Family(
        "prediction_out", _GAUGE, "1: prediction does worse than the heuristic and does not route.", own=True
    ),
    Family(
        "prediction_samples_total",
        _COUNTER,
        "Samples for the trainer, by what became of them.",
        ("fate",),
        own=True,
    ),
    Family("config_valid", _GAUGE, "1: the configuration offered last is in use.", own=True),
    Family("priorities_valid", _GAUGE, "1: the priorities offered last are in use.", own=True),
)

FAMILIES: Final = {family.name: family for family in _ALL}
