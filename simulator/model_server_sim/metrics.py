"""The /metrics page under vLLM's names: the only table of the series, and what each event adds to them.

Pure: the engine and times are passed in. Latencies are simulated seconds, whatever the time scale.
"""

from model_server_sim.engine import Engine, Event, Sequence, Step
from model_server_sim.exposition import Family, Fixed, Histogram, Value, labels_text, merged
from model_server_sim.params import EngineParams

_TTFT_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
_GAP_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
_REQUEST_S = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
_ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_HTTP_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60,
)  # fmt: skip

SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
"""Of `engine_sleep_state`; the index is the sleep level."""
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


def _token_bounds(longest: int) -> tuple[int, ...]:
    """Return 1, 2, 5, 10, ... up to `longest`."""
    bounds: list[int] = []
    power = 1
    while power <= longest:
        bounds.extend(b for b in (power, 2 * power, 5 * power) if b <= longest)
        power *= 10
    return tuple(bounds)


class EngineMetrics:
    """All series of one engine. `created` is the Unix time at which counting began.

    A server without adapters shows no LoRA series, as vLLM does.
    """

    def __init__(
        self, params: EngineParams, model: str, engine_index: int, *, created: float, with_lora: bool
    ) -> None:
        self._params = params
        self._with_lora = with_lora
        self._series = labels_text({"engine": str(engine_index), "model_name": model})
        self._created = created
        self._families: list[Family] = []
        gauge, counter, histogram = self._gauge, self._counter, self._histogram
        tokens = _token_bounds(params.max_model_len)

        self._running = gauge("num_requests_running", "Requests in the batch.")
        self._waiting = gauge("num_requests_waiting", "Requests waiting for a place in the batch.")
        self._sleep_state(engine_index, model)
        self._kv_usage = gauge("kv_cache_usage_perc", "Fraction of KV-cache blocks in use, 0 to 1.")
        self._cache_queries = counter("prefix_cache_queries", "Tokens looked up in the prefix cache.")
        self._cache_hits = counter("prefix_cache_hits", "Tokens found in the prefix cache.")
        self._external_queries = counter(
            "external_prefix_cache_queries", "Tokens looked up for a transfer from another engine."
        )
        self._external_hits = counter("external_prefix_cache_hits", "Tokens that came from another engine.")
        counter("mm_cache_queries", "Items looked up in a cache that the simulator does not have.")
        counter("mm_cache_hits", "Items found in a cache that the simulator does not have.")
        self._preemptions = counter("num_preemptions", "Sequences preempted for want of KV blocks.")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of requests that began to answer.")
        self._cached_tokens = counter("prompt_tokens_cached", "Prompt tokens that the prefix cache saved.")
        self._generation_tokens = counter("generation_tokens", "Tokens generated.")
        reasons = [f'{self._series},finished_reason="{reason}"' for reason in FINISH_REASONS]
        self._success = Value(
            "vllm:request_success_total", "counter", "Requests that ended.", reasons, created=created
        )
        self._families.append(self._success)
        counter("corrupted_requests", "Requests with NaN among their logits; none here.")
        self._drafts: tuple[Value, Value, Value] | None = None
        if params.speculative_tokens:
            self._drafts = (
                counter("spec_decode_num_drafts", "Drafts, one a sequence and iteration."),
                counter("spec_decode_num_draft_tokens", "Tokens that drafts proposed."),
                counter("spec_decode_num_accepted_tokens", "Proposed tokens that were accepted."),
            )

        self._iteration = histogram("iteration_tokens_total", "Tokens in an iteration.", _ITERATION_TOKENS)
        self._prompt_sizes = histogram("request_prompt_tokens", "Prompt tokens of a request.", tokens)
        self._output_sizes = histogram("request_generation_tokens", "Tokens a request generated.", tokens)
        self._max_output = histogram(
            "request_max_num_generation_tokens", "Most tokens asked of a request's sequences.", tokens
        )
        self._params_n = histogram("request_params_n", "Parameter n of a request.", (1, 2, 5, 10, 20))
        self._params_max = histogram("request_params_max_tokens", "Parameter max_tokens.", tokens)
        self._computed = histogram(
            "request_prefill_kv_computed_tokens", "Prompt tokens computed, not taken from a cache.", tokens
        )
        self._ttft = histogram("time_to_first_token_seconds", "Time to the first token.", _TTFT_S)
        self._gap = histogram("inter_token_latency_seconds", "Time between two tokens.", _GAP_S)
        self._mean_gap = histogram(
            "request_time_per_output_token_seconds", "Mean time per token after the first.", _GAP_S
        )
        self._e2e = histogram("e2e_request_latency_seconds", "Time from arrival to last token.", _REQUEST_S)
        self._queue = histogram("request_queue_time_seconds", "Time waiting.", _REQUEST_S)
        self._inference = histogram("request_inference_time_seconds", "Time in the batch.", _REQUEST_S)
        self._prefill = histogram("request_prefill_time_seconds", "Time in prefill.", _REQUEST_S)
        self._decode = histogram("request_decode_time_seconds", "Time in decode.", _REQUEST_S)
        self._cache_config(engine_index)
        self._lora = Value("vllm:lora_requests_info", "gauge", "Adapters that run and wait.", [])
        if with_lora:
            self._families.append(self._lora)
        self._http_latency()

    def record(self, engine: Engine, step: Step) -> None:
        """Count the events and the batch of one engine step."""
        if not step.batch_tokens:
            return
        self._iteration.observe(step.batch_tokens)
        for event in step.events:
            self._token(event)

    def accepted(self, max_tokens: int | None, output_tokens: int) -> None:
        """Count a request that entered the engine."""
        self._params_n.observe(1)
        self._params_max.observe(output_tokens if max_tokens is None else max_tokens)
        self._max_output.observe(output_tokens)

    def ended(self, sequence: Sequence, reason: str) -> None:
        """Count a request that ended; `reason` is one of FINISH_REASONS."""
        self._success.add(f'{self._series},finished_reason="{reason}"')
        self._prompt_sizes.observe(sequence.request.prompt_tokens)
        self._output_sizes.observe(sequence.generated)
        if sequence.started_at is None or sequence.first_token_at is None:
            return
        last = sequence.last_token_at
        self._e2e.observe(last - sequence.arrived_at)
        self._inference.observe(last - sequence.started_at)
        self._decode.observe(last - sequence.first_token_at)
        if sequence.generated > 1:
            self._mean_gap.observe((last - sequence.first_token_at) / (sequence.generated - 1))

    def page(self, engine: Engine, now_unix: float) -> str:
        """Return the page of a server with this engine alone, as of now."""
        self.update(engine, now_unix)
        return "".join([family.text() for family in self._families])

    def update(self, engine: Engine, now_unix: float) -> None:
        """Take over what the engine counts itself."""
        self._running.set(self._series, engine.running)
        self._waiting.set(self._series, engine.waiting)
        self._kv_usage.set(self._series, engine.kv_cache_usage)
        counters = engine.counters
        self._cache_queries.set(self._series, counters.prefix_queries)
        self._cache_hits.set(self._series, counters.prefix_hits)
        self._preemptions.set(self._series, counters.preemptions)
        self._prompt_tokens.set(self._series, counters.prompt_tokens)
        self._cached_tokens.set(self._series, counters.prefix_hits)
        self._generation_tokens.set(self._series, counters.generation_tokens)
        self._external_queries.set(self._series, counters.external_queries)
        self._external_hits.set(self._series, counters.external_hits)
        if self._drafts:
            drafted = counters.draft_tokens
            counts = (drafted // self._params.speculative_tokens, drafted, counters.accepted_tokens)
            for family, count in zip(self._drafts, counts, strict=True):
                family.set(self._series, count)
        if self._with_lora:
            running, waiting = engine.running_adapters(), engine.waiting_adapters()
            labels = {
                "max_lora": str(self._params.max_loras),
                "running_lora_adapters": ",".join(sorted(running)),
                "waiting_lora_adapters": ",".join(sorted(waiting - running)),
            }
            self._lora.replace({labels_text(labels): now_unix})

    def asleep(self, level: int) -> None:
        """Show a sleep level: 0 awake, 1 weights offloaded, 2 all discarded."""
        for index, series in enumerate(self._sleep_series):
            self._sleep.set(series, float(index == level))

    @staticmethod
    def joint_page(engines: list[tuple["EngineMetrics", Engine]], now_unix: float) -> str:
        """Return the page of a server with several engines: every family once, a series of each engine."""
        for metrics, engine in engines:
            metrics.update(engine, now_unix)
        return "".join(map(merged, zip(*(metrics._families for metrics, _ in engines), strict=True)))

    def _token(self, event: Event) -> None:
        sequence = event.sequence
        if sequence.generated > 1:
            self._gap.observe(event.latency_s)
            return
        self._ttft.observe(event.latency_s)
        self._computed.observe(sequence.request.prompt_tokens - sequence.cached_tokens)
        if sequence.started_at is not None:
            self._queue.observe(sequence.started_at - sequence.arrived_at)
            self._prefill.observe(event.at - sequence.started_at)

    def _gauge(self, name: str, help_text: str) -> Value:
        family = Value(f"vllm:{name}", "gauge", help_text, [self._series])
        self._families.append(family)
        return family

    def _counter(self, name: str, help_text: str) -> Value:
        family = Value(f"vllm:{name}_total", "counter", help_text, [self._series], created=self._created)
        self._families.append(family)
        return family

    def _histogram(self, name: str, help_text: str, bounds: tuple[float, ...]) -> Histogram:
        family = Histogram(f"vllm:{name}", help_text, self._series, bounds, created=self._created)
        self._families.append(family)
        return family

    def _sleep_state(self, engine_index: int, model: str) -> None:
        self._sleep_series = [
            labels_text({"engine": str(engine_index), "model_name": model, "sleep_state": state})
            for state in SLEEP_STATES
        ]
        help_text = "Sleep state, 1 for the present one."
        self._sleep = Value("vllm:engine_sleep_state", "gauge", help_text, self._sleep_series)
        self._families.append(self._sleep)
        self.asleep(0)

    def _cache_config(self, engine_index: int) -> None:
        labels = labels_text(
            {
                "block_size": str(self._params.block_size),
                "cache_dtype": "auto",
                "calculate_kv_scales": "False",
                "cpu_offload_gb": "0",
                "enable_prefix_caching": "True",
                "engine": str(engine_index),
                "gpu_memory_utilization": "0.9",
                "is_attention_free": "False",
                "num_cpu_blocks": "None",
                "num_gpu_blocks": str(self._params.num_gpu_blocks),
                "num_gpu_blocks_override": "None",
                "prefix_caching_hash_algo": "sha256",
                "sliding_window": "None",
                "swap_space": "4",
            }
        )
        family = Value("vllm:cache_config_info", "gauge", "Configuration of the KV cache.", [labels])
        family.set(labels, 1)
        self._families.append(family)

    def _http_latency(self) -> None:
        """Add the web framework's family, which a real server exposes too; it stays at zero."""
        series = labels_text({"handler": "/v1/completions", "method": "POST"})
        name = "http_request_duration_seconds"
        family = Histogram(name, "Latency by handler.", series, _HTTP_S, created=self._created)
        self._families.append(Fixed(family.text()))
