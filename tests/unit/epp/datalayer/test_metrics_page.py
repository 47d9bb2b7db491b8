"""Reading the needed series from a metrics page."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoint_picker.datalayer.adapters import AdapterReading
from endpoint_picker.datalayer.metrics_page import (
    ENGINES,
    Engine,
    PageReader,
    Reading,
    Series,
    Signal,
    engine_of,
)

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a } b"} 3.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
# HELP vllm:num_requests_waiting_by_reason Waiting, by reason.
vllm:num_requests_waiting_by_reason{reason="capacity"} 99.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",dtype="auto",num_gpu_blocks="27456",num_gpu_blocks_override="5"} 1.0
"""
SGLANG = b"""\
sglang:num_running_reqs{model_name="m"} 4
sglang:num_queue_reqs{model_name="m"} 1
sglang:token_usage{model_name="m"} 0.5
sglang:cache_config_info{page_size="64",num_pages="1000"} 1
"""
TRTLLM = b"""\
trtllm_num_requests_waiting 1
trtllm_num_requests_running 2
trtllm_kv_cache_utilization 0.75
trtllm_kv_cache_tokens_per_block 32
trtllm_kv_cache_max_blocks 512
"""
TRITON_TRT = b"""\
nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 5
nv_trt_llm_request_metrics{model="m",request_type="scheduled",version="1"} 6
nv_trt_llm_request_metrics{model="m",request_type="max",version="1"} 512
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="m"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m"} 2449
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m"} 0.125
"""


SGLANG_RANKS = b"""\
sglang:num_running_reqs{dp_rank="0"} 4
sglang:num_running_reqs{dp_rank="1"} 2
sglang:num_queue_reqs{dp_rank="0"} 1
sglang:num_queue_reqs{dp_rank="1"} 0
sglang:token_usage{dp_rank="0"} 0.5
sglang:token_usage{dp_rank="1"} 0.25
sglang:cache_config_info{dp_rank="0",page_size="64",num_pages="1000"} 1
sglang:cache_config_info{dp_rank="1",page_size="64",num_pages="900"} 1
"""
TRTLLM_RANKS = b"""\
trtllm_num_requests_waiting{rank="0"} 1
trtllm_num_requests_waiting{rank="1"} 1
trtllm_num_requests_running{rank="0"} 2
trtllm_num_requests_running{rank="1"} 2
trtllm_kv_cache_utilization{rank="0"} 0.75
trtllm_kv_cache_utilization{rank="1"} 0.25
trtllm_kv_cache_tokens_per_block{rank="0"} 32
trtllm_kv_cache_tokens_per_block{rank="1"} 32
trtllm_kv_cache_max_blocks{rank="0"} 512
trtllm_kv_cache_max_blocks{rank="1"} 512
"""
TRITON = b"""\
nv_inference_pending_request_count{model="a",version="1"} 2
nv_inference_pending_request_count{model="b",version="1"} 3
nv_inference_exec_count{model="a",version="1"} 7
"""
OLD_VLLM = VLLM.replace(b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")


def read(page: bytes, engine: str = "vllm") -> Reading:
    return PageReader(ENGINES[engine]).read(page)


@pytest.mark.parametrize(
    ("engine", "page", "expected"),
    [
        pytest.param("vllm", VLLM, Reading(2, 3, 0.25, 16, 27456), id="vllm"),
        pytest.param("sglang", SGLANG, Reading(1, 4, 0.5, 64, 1000), id="sglang"),
        pytest.param("trtllm-serve", TRTLLM, Reading(1, 2, 0.75, 32, 512), id="trtllm-serve"),
        pytest.param(
            "triton-tensorrt-llm", TRITON_TRT, Reading(5, 6, 0.125, 64, 2449), id="triton-tensorrt-llm"
        ),
        pytest.param("vllm", OLD_VLLM, Reading(2, 3, 0.25, 16, 27456), id="older vllm"),
        pytest.param("sglang", SGLANG_RANKS, Reading(1, 6, 0.375, 64, 1900), id="sglang, two ranks"),
        pytest.param("trtllm-serve", TRTLLM_RANKS, Reading(2, 4, 0.5, 32, 1024), id="trtllm, two ranks"),
        pytest.param(
            "triton-tensorrt-llm",
            TRITON_TRT + TRITON_TRT.replace(b'"m"', b'"n"').split(b"\n", 1)[0],
            Reading(5, 6, 0.125, 64, 2449),
            id="triton-tensorrt-llm, a line apart from its group",
        ),
    ],
)
def test_each_engine_is_read(engine: str, page: bytes, expected: Reading) -> None:
    assert read(page, engine) == expected


def test_a_reader_follows_series_that_move_between_pages() -> None:
    reader = PageReader(ENGINES["vllm"])
    padding = b"other_metric 1\n" * 5000
    for page in (VLLM, padding + VLLM, VLLM + padding, padding + VLLM + padding, VLLM, padding[:100] + VLLM):
        assert reader.read(page) == Reading(2, 3, 0.25, 16, 27456)
    assert not reader.read(padding).is_useful
    assert reader.read(VLLM).waiting == 2


def test_ranks_behind_one_port_add_up_and_their_usage_is_averaged() -> None:
    page = b"""#
vllm:num_requests_waiting{engine="0"} 1
vllm:num_requests_waiting{engine="1"} 2
vllm:kv_cache_usage_perc{engine="0"} 0.2
vllm:kv_cache_usage_perc{engine="1"} 0.6
"""
    reader = PageReader(ENGINES["vllm"])
    for _ in range(3):
        reading = reader.read(page)
        assert reading.waiting == 3
        assert reading.kv_usage == pytest.approx(0.4)


def test_blocks_of_all_engines_add_up() -> None:
    page = b"""#
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="500"} 1
"""
    reading = read(page)
    assert (reading.block_size, reading.num_blocks) == (16, 1500)


def test_blocks_of_several_sizes_count_in_the_largest() -> None:
    page = b"""#
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1
vllm:cache_config_info{block_size="32",engine="1",num_gpu_blocks="1000"} 1
"""
    reading = read(page)
    assert (reading.block_size, reading.num_blocks) == (32, 1500)


def test_a_server_that_shows_both_names_of_a_gauge_is_read_by_the_newer() -> None:
    page = b"#\nvllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.5\n"
    assert read(page).kv_usage == 0.5


def test_a_reader_follows_a_server_that_is_upgraded() -> None:
    reader = PageReader(ENGINES["vllm"])
    for page in (OLD_VLLM, VLLM, OLD_VLLM):
        assert reader.read(page) == Reading(2, 3, 0.25, 16, 27456)


def test_what_a_page_should_show_and_does_not_is_said() -> None:
    page = b"#\nvllm:num_requests_waiting 1\nvllm:num_requests_running 1\n"
    assert read(page).missing == Signal.KV_USAGE | Signal.BLOCKS
    assert read(VLLM).missing == 0
    triton = read(TRITON, "triton")
    assert (triton.waiting, triton.running, triton.missing) == (5, 7, 0)
    assert math.isnan(triton.kv_usage)


def test_a_label_is_matched_whole() -> None:
    page = TRITON_TRT.replace(b'{model="m",request_type="waiting"', b'{old_request_type="waiting"')
    assert math.isnan(read(page, "triton-tensorrt-llm").waiting)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(b"vllm:num_requests_waiting 7 1700000000000", 7, id="with a timestamp"),
        pytest.param(b'vllm:num_requests_waiting{a="1"} 7 1700000000000', 7, id="labels and a timestamp"),
        pytest.param(b"vllm:num_requests_waiting\t7", 7, id="tab"),
        pytest.param(b"vllm:num_requests_waiting 1e300", 1e9, id="absurd: very many"),
        pytest.param(b"vllm:num_requests_waiting NaN", math.nan, id="NaN"),
        pytest.param(b"vllm:num_requests_waiting +Inf", math.nan, id="infinite"),
        pytest.param(b"vllm:num_requests_waiting -1", math.nan, id="negative"),
        pytest.param(b"vllm:num_requests_waiting x", math.nan, id="no number"),
        pytest.param(b"vllm:num_requests_waiting ", math.nan, id="no value"),
        pytest.param(b"vllm:num_requests_waiting_total 7", math.nan, id="another metric"),
        pytest.param(b"# TYPE vllm:num_requests_waiting gauge", math.nan, id="a comment"),
    ],
)
def test_what_a_line_is_worth(line: bytes, expected: float) -> None:
    assert read(b"# page\n" + line + b"\n").waiting == pytest.approx(expected, nan_ok=True)


def test_usage_beyond_one_is_one() -> None:
    assert read(b"#\nvllm:kv_cache_usage_perc 40\n").kv_usage == 1.0


@pytest.mark.parametrize("value", [b"", b"-5", b"1e3", b"99999999999999", b"None"])
def test_block_sizes_that_make_no_sense_are_unknown(value: bytes) -> None:
    assert read(b'#\nvllm:cache_config_info{block_size="' + value + b'"} 1\n').block_size == 0


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        pytest.param({}, "vllm", id="no label"),
        pytest.param({"llm-d.ai/engine-type": "sglang"}, "sglang", id="label"),
        pytest.param({"inference.networking.k8s.io/engine-type": "triton"}, "triton", id="old label"),
        pytest.param({"llm-d.ai/engine-type": "mine"}, "vllm", id="unknown engine"),
    ],
)
def test_the_engine_label(labels: dict[str, str], expected: str) -> None:
    assert engine_of(labels, "llm-d.ai/engine-type", "vllm") is ENGINES[expected]


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_no_page_breaks_the_reader(before: bytes, after: bytes) -> None:
    reader = PageReader(ENGINES["vllm"])
    for page in (before, before + b"\nvllm:num_requests_waiting" + after, VLLM[:-40] + after):
        reading = reader.read(page)
        assert not reading.waiting < 0
        assert not reading.kv_usage > 1


def test_series_whose_names_only_begin_alike_are_passed_over_but_not_without_end() -> None:
    wanted = b"\nvllm:num_requests_waiting 3\n"
    assert read(b"\nvllm:num_requests_waiting_by 1" * 100 + wanted).waiting == 3
    assert math.isnan(read(b"\nvllm:num_requests_waiting_by 1" * 10_000 + wanted).waiting)


LORA = (
    VLLM
    + b"""\
# TYPE vllm:lora_requests_info gauge
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters=""} 1.7645600001e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="c, a",waiting_lora_adapters="d"} 1.7645600003e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 1.7645600002e+09
"""
)


def test_the_newest_sample_of_the_adapters_counts() -> None:
    reading = read(LORA)
    assert reading.adapters == AdapterReading(frozenset("ac"), frozenset("d"), 4)
    assert reading.waiting == 2
    assert not reading.missing
    assert read(VLLM).adapters is None
    assert not read(VLLM).missing, "a server without adapters shows no such series"


def test_among_thousands_of_former_combinations_the_newest_is_found() -> None:
    former = b"".join(
        b'vllm:lora_requests_info{max_lora="4",running_lora_adapters="a%d",waiting_lora_adapters=""} %d\n'
        % (n, 1_764_560_000 + n)
        for n in range(3000)
    )
    reading = read(b"#\n" + former)
    assert reading.adapters == AdapterReading(frozenset({"a2999"}), frozenset(), 4)


def lora(running: str, slots: int, waiting: str = "") -> AdapterReading:
    return AdapterReading(frozenset(filter(None, [running])), frozenset(filter(None, [waiting])), slots)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(b'max_lora="x",running_lora_adapters="a"} 1', lora("a", 0), id="no number of slots"),
        pytest.param(
            b'max_lora="2",running_lora_adapters="a} 1",waiting_lora_adapters="b"} 1',
            lora("a} 1", 2, "b"),
            id="a brace in a name",
        ),
        pytest.param(
            b'running_lora_adapters="q\\"x",max_lora="2"} 1', lora('q"x', 2), id="a quote in a name"
        ),
        pytest.param(b'max_lora="2",running_lora_adapters="a"} soon', None, id="no time"),
        pytest.param(b'max_lora="2",running_lora_adapters="' + b"a," * 20_000 + b'"} 1', None, id="too long"),
    ],
)
def test_odd_lines_of_adapters(line: bytes, expected: AdapterReading | None) -> None:
    assert read(b"#\nvllm:lora_requests_info{" + line + b"\n").adapters == expected


def test_custom_metrics_are_attributes_and_a_missing_one_is_a_missing_signal() -> None:
    engine = Engine(
        waiting=(Series("q"),),
        attributes=(("cost", Series("cost", (("kind", "x"),))), ("heat", Series("heat"))),
    )
    reader = PageReader(engine, "extractor")
    heat = b'heat{gpu="0"} 40\nheat{gpu="1"} 5e9\nheat{gpu="2"} NaN\n'
    page = b'#\nq 1\ncost{kind="x"} -2.5\ncost{kind="y"} 7\n' + heat
    reading = reader.read(page)
    assert dict(reading.attributes) == {("extractor", "cost"): -2.5, ("extractor", "heat"): (40 + 5e9) / 2}
    assert not reading.missing
    reading = reader.read(b"#\nq 1\nheat +Inf\n")
    assert reading.attributes == ()
    assert reading.missing == Signal.ATTRIBUTES


def hit_rates(*pages: bytes, engine: str = "vllm") -> list[float | None]:
    reader = PageReader(ENGINES[engine], "x", hit_rate=True)
    found = [dict(reader.read(b"#\n" + page).attributes) for page in pages]
    return [each.get(("x", "KVCacheHitRate")) for each in found]


def counters(hits: float, queries: float, prefix: str = "") -> bytes:
    name = f"vllm:{prefix}prefix_cache"
    return f"{name}_hits_total {hits}\n{name}_queries_total {queries}\n".encode()


def test_the_hit_rate_of_two_counters_follows_their_growth() -> None:
    rates = hit_rates(
        counters(0, 0),
        # 30 of 100.
        counters(30, 100),
        # Nothing grew: as before.
        counters(30, 100),
        # 200,000 more, of which 200,000 hit: the 30 of 100 weigh half. (15 + 200000) / (50 + 200000).
        counters(200_030, 200_100),
        # The server began anew: 1 of 4.
        counters(1, 4),
    )
    assert rates == [None, 0.3, 0.3, pytest.approx(200_015 / 200_050), 0.25]


def test_the_hit_rate_under_the_older_names_of_all_engines_of_a_port() -> None:
    page = (
        b'vllm:gpu_prefix_cache_hits_total{engine="0"} 1\n'
        b'vllm:gpu_prefix_cache_hits_total{engine="1"} 2\n'
        b'vllm:gpu_prefix_cache_queries_total{engine="0"} 4\n'
        b'vllm:gpu_prefix_cache_queries_total{engine="1"} 6\n'
    )
    assert hit_rates(page) == [0.3]


@pytest.mark.parametrize(
    ("engine", "name"), [("sglang", "sglang:cache_hit_rate"), ("trtllm-serve", "trtllm_kv_cache_hit_rate")]
)
def test_the_hit_rate_that_an_engine_shows_itself(engine: str, name: str) -> None:
    assert hit_rates(f"{name} 0.7\n".encode(), f"{name} 1.7\n".encode(), engine=engine) == [0.7, 1.0]


def test_a_page_without_the_hit_rate_lacks_an_attribute() -> None:
    page = b"#\nvllm:num_requests_waiting 1\n"
    assert PageReader(ENGINES["vllm"], "x", hit_rate=True).read(page).missing & Signal.ATTRIBUTES
    assert not PageReader(ENGINES["vllm"], "x").read(page).missing & Signal.ATTRIBUTES


def test_numbers_of_a_hostile_page_stay_finite() -> None:
    engine = Engine(waiting=(Series("q"),), attributes=(("cost", Series("cost")),))
    page = b"#\nq 1\n" + b"".join(b'cost{i="%d"} 1e308\n' % number for number in range(4))
    ((_key, cost),) = PageReader(engine, "x").read(page).attributes
    assert math.isfinite(cost)
    assert hit_rates(counters(-50, 100)) == [0.0]
