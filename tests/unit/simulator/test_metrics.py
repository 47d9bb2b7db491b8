"""The metrics page: a stock Prometheus parser reads it; names, values and size are like vLLM's."""

import random

from prometheus_client.parser import text_string_to_metric_families

from model_server_sim.engine import Engine, Request
from model_server_sim.exposition import Value, labels_text
from model_server_sim.metrics import EngineMetrics
from model_server_sim.params import EngineParams

MODEL = "meta-llama/Llama-3.1-8B-Instruct"


def samples(page: str) -> dict[str, dict[str, float]]:
    """Return name -> label text -> value, refusing doubled families and series."""
    found: dict[str, dict[str, float]] = {}
    families = list(text_string_to_metric_families(page))
    assert len({f.name for f in families}) == len(families)
    for family in families:
        for sample in family.samples:
            series = found.setdefault(sample.name, {})
            labels = labels_text(dict(sorted(sample.labels.items())))
            assert labels not in series
            series[labels] = sample.value
    return found


def total(found: dict[str, dict[str, float]], name: str) -> float:
    return sum(found[name].values())


def run(requests: list[Request], *, until: int = 10_000) -> tuple[Engine, EngineMetrics]:
    params = EngineParams(max_num_seqs=2)
    engine = Engine(params, random.Random(0).random)
    metrics = EngineMetrics(params, MODEL, 0, created=1000.0, with_lora=True)
    for request in requests:
        engine.submit(request, 0.0)
        metrics.accepted(None, request.output_tokens)
    now: float | None = 0.0
    for _ in range(until):
        if now is None:
            break
        step = engine.step(now)
        metrics.record(engine, step)
        for event in step.events:
            if event.sequence.finished:
                metrics.ended(event.sequence, "length")
        now = step.next_time
    return engine, metrics


def request(index: int, adapter: str | None = None) -> Request:
    return Request(
        request_id=f"r{index}", prompt_tokens=40, output_tokens=5, block_hashes=(1, 2), adapter=adapter
    )


def test_the_page_is_about_as_large_as_vllm_s() -> None:
    engine, metrics = run([request(i) for i in range(5)])
    assert 45_000 < len(metrics.page(engine, 2000.0)) < 56_000


def test_gauges_show_the_present_load() -> None:
    engine, metrics = run(
        [request(0, "red"), request(1, "blue"), request(2, "blue"), request(3, "green")], until=1
    )
    found = samples(metrics.page(engine, 2000.5))
    assert found["vllm:num_requests_running"] == {f'engine="0",model_name="{MODEL}"': 2.0}
    assert total(found, "vllm:num_requests_waiting") == 2
    assert total(found, "vllm:kv_cache_usage_perc") == 6 / 27_000
    lora = 'max_lora="4",running_lora_adapters="blue,red",waiting_lora_adapters="green"'
    assert found["vllm:lora_requests_info"] == {lora: 2000.5}
    (config,) = found["vllm:cache_config_info"]
    assert 'block_size="16"' in config
    assert 'num_gpu_blocks="27000"' in config


def test_counters_and_histograms_account_for_every_token() -> None:
    engine, metrics = run([request(i) for i in range(4)])
    found = samples(metrics.page(engine, 2000.0))
    expected = {
        "vllm:prompt_tokens_total": 160,
        "vllm:generation_tokens_total": 20,
        "vllm:prefix_cache_queries_total": 160,
        "vllm:prefix_cache_hits_total": 64,
        "vllm:request_success_total": 4,
        "vllm:time_to_first_token_seconds_count": 4,
        "vllm:inter_token_latency_seconds_count": 16,
        "vllm:e2e_request_latency_seconds_count": 4,
        "vllm:request_queue_time_seconds_count": 4,
        "vllm:request_prompt_tokens_sum": 160,
        "vllm:request_generation_tokens_sum": 20,
        "vllm:request_prefill_kv_computed_tokens_sum": 96,
        "vllm:iteration_tokens_total_sum": 96 + 16,
    }
    assert {name: total(found, name) for name in expected} == expected
    e2e = total(found, "vllm:e2e_request_latency_seconds_sum")
    parts = ("request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds")
    assert abs(sum(total(found, f"vllm:{part}_sum") for part in parts) - e2e) < 1e-9


def test_buckets_accumulate() -> None:
    engine, metrics = run([request(i) for i in range(4)])
    page = metrics.page(engine, 2000.0)
    buckets = list(samples(page)["vllm:request_prompt_tokens_bucket"].values())
    assert buckets == sorted(buckets)
    assert (buckets[0], buckets[-1]) == (0, 4)


def test_an_aborted_request_that_never_began_counts_only_as_aborted() -> None:
    engine, metrics = run([], until=1)
    sequence = engine.submit(request(0), 0.0)
    engine.abort("r0")
    metrics.ended(sequence, "abort")
    found = samples(metrics.page(engine, 1.0))
    aborted = f'engine="0",finished_reason="abort",model_name="{MODEL}"'
    assert found["vllm:request_success_total"][aborted] == 1
    assert total(found, "vllm:e2e_request_latency_seconds_count") == 0


def test_label_values_are_escaped() -> None:
    name = 'a"b\\c\nd'
    family = Value("x", "gauge", "Help.", [labels_text({"model": name})])
    (parsed,) = text_string_to_metric_families(family.text())
    assert parsed.samples[0].labels == {"model": name}


def test_the_page_of_several_engines_has_every_family_once_and_a_series_of_each() -> None:
    params = EngineParams()
    pairs = []
    for rank in range(3):
        engine = Engine(params, random.Random(rank).random)
        pairs.append((EngineMetrics(params, MODEL, rank, created=1000.0, with_lora=False), engine))
        for index in range(rank):
            engine.submit(request(index), 0.0)
    found = samples(EngineMetrics.joint_page(pairs, 2000.0))
    waiting = found["vllm:num_requests_waiting"]
    assert sorted(waiting.values()) == [0, 1, 2]
    assert waiting[f'engine="2",model_name="{MODEL}"'] == 2
    assert len(found["vllm:time_to_first_token_seconds_count"]) == 3
    assert len(found["vllm:cache_config_info"]) == 3


def test_speculative_decoding_shows_its_counters() -> None:
    params = EngineParams(speculative_tokens=3, acceptance_rate=0.5)
    engine = Engine(params, random.Random(0).random)
    metrics = EngineMetrics(params, MODEL, 0, created=1000.0, with_lora=False)
    engine.submit(Request(request_id="a", prompt_tokens=10, output_tokens=100), 0.0)
    engine.advance(1e6)
    found = samples(metrics.page(engine, 2000.0))
    drafts = total(found, "vllm:spec_decode_num_drafts_total")
    assert total(found, "vllm:spec_decode_num_draft_tokens_total") == 3 * drafts
    assert total(found, "vllm:spec_decode_num_accepted_tokens_total") == 99 - drafts
