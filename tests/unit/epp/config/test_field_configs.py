"""Configurations as users of the llm-d router have them: what loads decides, what cannot load says why.

The first are what its Helm charts render, by kind of model server and by option; the rest have every key of
the file's shape. Each is checked by `headroom-epp check-config` as well.
"""

from pathlib import Path

import numpy as np
import pytest
import yaml

from endpoint_picker.check_config import run
from endpoint_picker.config.build import build
from endpoint_picker.config.parsers import READING
from endpoint_picker.config.registry import Registry
from endpoint_picker.config_errors import ConfigError
from endpoint_picker.datalayer.metrics_page import PageReader
from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.decision import Decision
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.routing import PoolRouter, build_router

REGISTRY = Registry.installed()


def chart(extractor: str = "", parser: str = "") -> str:
    """Return what the charts render without further options."""
    parsers = f"requestHandler: {{parsers: [{{pluginRef: {parser}}}]}}" if parser else ""
    listed = f"- type: {parser}" if parser else ""
    return f"""
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: metrics-data-source
  parameters: {{scheme: http, path: /metrics, insecureSkipVerify: true}}
- type: core-metrics-extractor
  {extractor}
{listed}
schedulingProfiles:
- name: default
  plugins:
  - {{pluginRef: queue-scorer, weight: 2}}
  - {{pluginRef: kv-cache-utilization-scorer, weight: 2}}
  - {{pluginRef: prefix-cache-scorer, weight: 3}}
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors: [{{pluginRef: core-metrics-extractor}}]
{parsers}
"""


#: A page of each engine: 4 requests wait, 2 run, a quarter of the KV cache is in use.
PAGES = {
    "vllm": "vllm:num_requests_waiting 4\nvllm:num_requests_running 2\nvllm:kv_cache_usage_perc 0.25\n",
    "sglang": "sglang:num_queue_reqs 4\nsglang:num_running_reqs 2\nsglang:token_usage 0.25\n",
    "trtllm-serve": "trtllm_num_requests_waiting 4\ntrtllm_num_requests_running 2\n"
    "trtllm_kv_cache_utilization 0.25\n",
    "triton-tensorrt-llm": 'nv_trt_llm_request_metrics{request_type="waiting"} 4\n'
    'nv_trt_llm_request_metrics{request_type="scheduled"} 2\n'
    'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"} 0.25\n',
}


def router_of(text: str, count: int = 3) -> PoolRouter:
    router = build_router(config_text=text, clock=lambda: 100.0, rng=np.random.default_rng(1))
    assert not router.config_error, router.config_error
    router.replace_endpoints(Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000) for n in range(count))
    return router


def load(router: PoolRouter, waiting: list[float], usage: list[float]) -> None:
    rows = router.table.ready_rows
    router.table.waiting[rows] = waiting
    router.table.running[rows] = 0
    router.table.kv_usage[rows] = usage
    router.table.scraped_at[rows] = 100.0


def picked(router: PoolRouter, prompt: bytes = b"", kind: str = "") -> str:
    headers = {"x-kind": kind} if kind else {}
    request = InferenceRequest(request_id="r", model="m", prompt=prompt, headers=headers)
    answer = router.decide(request, None, lambda _late: None)
    assert isinstance(answer, Decision)
    return answer.endpoint.removeprefix("10.0.0.").removesuffix(":8000")


def faults_of(text: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        build(text, REGISTRY)
    return {fault.path: fault.message for fault in caught.value.faults}


@pytest.mark.parametrize("engine", PAGES)
def test_the_charts_configuration_for_each_model_server(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = chart("" if engine == "vllm" else f"parameters: {{defaultEngine: {engine}}}")
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert run([str(file)]) == 0
    assert capsys.readouterr().err == ""
    plan = build(text, REGISTRY).scrape
    assert plan is not None
    assert plan.default_engine == engine
    reading = PageReader(plan.engines[plan.default_engine]).read(("#\n" + PAGES[engine]).encode())
    assert (reading.waiting, reading.running, reading.kv_usage) == (4.0, 2.0, 0.25)
    router = router_of(text)
    load(router, [9, 0, 9], [0.5, 0.5, 0.5])
    assert picked(router) == "1"
    load(router, [0, 0, 0], [0.9, 0.9, 0.1])
    assert picked(router) == "2"
    # A server that holds the prompt is worth 3; the idle ones' 2 for the queue is less.
    load(router, [5, 0, 0], [0.5, 0.5, 0.5])
    prompt = b"p" * 4096
    router.scheduler.pool.index.record(router.index.hashes("m", prompt), 0)
    assert picked(router, prompt) == "0"


def read_by(text: str) -> tuple[set[str], bool]:
    """Return the parsers whose APIs are read, and whether other JSON bodies are."""
    reading = router_of(text).reading()
    return set(reading.parsers), reading.others


def test_the_charts_configuration_for_triton_reads_no_body() -> None:
    text = chart("parameters: {defaultEngine: triton}", "passthrough-parser")
    assert read_by(text) == (set(), False)


@pytest.mark.parametrize(
    ("parsers", "reading"),
    [
        pytest.param(["openai-parser"], ({"openai-parser"}, True), id="openai"),
        pytest.param(["openai-parser", "passthrough-parser"], ({"openai-parser"}, False), id="both"),
        pytest.param(["anthropic-parser"], ({"anthropic-parser"}, False), id="anthropic"),
    ],
)
def test_parsers_are_chosen(parsers: list[str], reading: tuple[set[str], bool]) -> None:
    listed = ", ".join(f"{{type: {each}}}" for each in parsers)
    refs = ", ".join(f"{{pluginRef: {each}}}" for each in parsers)
    assert read_by(f"plugins: [{listed}]\nrequestHandler: {{parsers: [{refs}]}}") == reading


def test_without_parsers_every_api_is_read() -> None:
    assert read_by("plugins: []") == ({kind.type_name for kind in READING}, True)


def test_prompts_are_laid_out_only_for_a_plugin_that_reads_them() -> None:
    assert not build("plugins: [{type: queue-scorer}]", REGISTRY).reading.prompt
    assert build("plugins: [{type: prefix-cache-scorer}]", REGISTRY).reading.prompt


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        pytest.param(
            "plugins: [{type: openai-parser}, {type: openai-parser, name: b}]\n"
            "requestHandler: {parsers: [{pluginRef: openai-parser}, {pluginRef: b}]}",
            "requestHandler.parsers[1]",
            "would do nothing",
            id="second of a type",
        ),
        pytest.param(
            "plugins: [{type: openai-parser}, {type: passthrough-parser}]\n"
            "requestHandler: {parsers: [{pluginRef: passthrough-parser}, {pluginRef: openai-parser}]}",
            "requestHandler.parsers[1]",
            "list that one last",
            id="after the passthrough parser",
        ),
        pytest.param(
            "plugins: [{type: queue-scorer}]\nrequestHandler: {parsers: [{pluginRef: queue-scorer}]}",
            "requestHandler.parsers[0].pluginRef",
            "no parser",
            id="no parser",
        ),
        pytest.param(
            "plugins: [{type: openai-parser}]\nparser: {pluginRef: openai-parser}\n"
            "requestHandler: {parsers: [{pluginRef: openai-parser}]}",
            "parser",
            "remove this one",
            id="old and new key",
        ),
        pytest.param("plugins: [{type: openai-parser}]", "plugins[0]", "used nowhere", id="not referred to"),
    ],
)
def test_parsers_that_would_do_nothing_are_faults(text: str, path: str, words: str) -> None:
    assert words in faults_of(text)[path]


def test_the_charts_configuration_for_a_grpc_model_server_reads_its_messages() -> None:
    assert read_by(chart(parser="vllmgrpc-parser")) == ({"vllmgrpc-parser"}, False)


PREDICTOR = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: predicted-latency-producer
- type: prefix-cache-affinity-filter
  name: strict-affinity-filter
  parameters: {affinityThreshold: 0.99, maxTTFTPenaltyMs: 5000, ttftSource: latencyPredictor}
- type: slo-headroom-tier-filter
- type: prefix-cache-affinity-filter
  name: loose-affinity-filter
  parameters: {affinityThreshold: 0.8, maxTTFTPenaltyMs: 5000, ttftSource: latencyPredictor}
- type: latency-scorer
- type: weighted-random-picker
- type: latency-slo-admitter
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: strict-affinity-filter
  - pluginRef: slo-headroom-tier-filter
  - pluginRef: loose-affinity-filter
  - pluginRef: latency-scorer
  - pluginRef: weighted-random-picker
"""


def test_the_predictors_configuration_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(PREDICTOR)
    assert run([str(file)]) == 0
    assert capsys.readouterr().err == ""


#: Every key of the file's shape that this version offers.
WHOLE = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl=false, haPopulateNonLeaderDatastore]
plugins:
- {type: header-profile-handler, name: by-header, parameters: {headerName: X-Kind, defaultProfile: chat}}
- {type: label-selector-filter, name: fast, parameters: {matchLabels: {tier: fast}}}
- {type: queue-scorer}
- {type: active-request-scorer}
- {type: max-score-picker}
- {type: random-picker}
- {type: concurrency-detector, name: full, parameters: {maxConcurrency: 4}}
- {type: metrics-data-source, parameters: {interval: 100ms}}
- {type: core-metrics-extractor}
- {type: openai-parser}
- {type: passthrough-parser}
schedulingProfiles:
- name: chat
  plugins: [{pluginRef: fast}, {pluginRef: queue-scorer, weight: 2}, {pluginRef: max-score-picker}]
- name: batch
  plugins: [{pluginRef: active-request-scorer}, {pluginRef: random-picker}]
dataLayer:
  injectDefaults: true
  sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: core-metrics-extractor}]}]
flowControl:
  saturationDetector: {pluginRef: full}
requestHandler:
  parsers: [{pluginRef: openai-parser}, {pluginRef: passthrough-parser}]
"""


def test_every_key_that_is_offered_acts() -> None:
    config = build(WHOLE, REGISTRY)
    assert config.scrape is not None
    assert config.scrape.interval == 0.1
    assert (set(config.reading.parsers), config.reading.others) == ({"openai-parser"}, False)
    router = router_of(WHOLE)
    router.replace_endpoints(
        Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000, labels={"tier": "fast" if n == 1 else "slow"})
        for n in range(3)
    )
    assert {picked(router) for _ in range(20)} == {"1"}
    assert {picked(router, kind="batch") for _ in range(60)} == {"0", "1", "2"}
    # 80 requests in flight over 3 * 4.
    assert router.scheduler.saturation() == pytest.approx(80 / 12)


def test_the_old_keys_load_with_a_warning_each() -> None:
    old = yaml.safe_load(WHOLE)
    old["apiVersion"] = "inference.networking.x-k8s.io/v1alpha1"
    old["saturationDetector"] = old.pop("flowControl")["saturationDetector"]
    old["parser"] = old.pop("requestHandler")["parsers"][1]
    old["plugins"] = [each for each in old["plugins"] if each["type"] != "openai-parser"]
    config = build(yaml.safe_dump(old), REGISTRY)
    assert [warning.split()[0] for warning in config.warnings] == [
        "apiVersion",
        "saturationDetector",
        "parser",
    ]
    assert (set(config.reading.parsers), config.reading.others) == (set(), False)


NOT_YET = """
dataLayer:
  discovery: {pluginRef: d}
  peerDiscovery: {pluginRef: e}
  crossReplicaSyncerPluginRef: f
  crossReplicaSyncInterval: 200ms
"""


def test_every_other_key_of_the_shape_is_answered_with_the_reason() -> None:
    faults = faults_of(NOT_YET)
    assert set(faults) == {
        f"{section}.{key}" for section, keys in yaml.safe_load(NOT_YET).items() for key in keys
    }
    assert all(message.startswith("not offered in this version: ") for message in faults.values())
    assert "--endpoints-file" in faults["dataLayer.discovery"]


FLOW_CONTROL = """
featureGates: [flowControl]
plugins:
- {type: round-robin-fairness-policy, name: turns}
- {type: slo-deadline-ordering-policy}
- {type: priority-holdback-policy, parameters: {minCeiling: 0.5}}
- {type: concurrency-detector, parameters: {maxConcurrency: 7}}
flowControl:
  maxBytes: 10G
  maxRequests: "1k"
  enableEviction: true
  defaultRequestTTL: 30s
  noEndpointRequestTTL: 5m
  defaultPriorityBand: {maxRequests: 100}
  defaultNegativePriorityBand: {maxRequests: 10}
  priorityBands:
  - {priority: 1, maxBytes: 1Gi, fairnessPolicyRef: turns, orderingPolicyRef: slo-deadline-ordering-policy}
  usageLimitPolicyPluginRef: priority-holdback-policy
  saturationDetector: {pluginRef: concurrency-detector}
"""


def test_flow_control_is_taken_as_the_router_writes_it() -> None:
    config = build(FLOW_CONTROL, REGISTRY)
    flow = config.flow
    assert flow is not None
    assert (flow.max_bytes, flow.max_requests) == (10e9, 1000)
    assert (flow.ttl_s, flow.no_endpoint_ttl_s) == (30.0, 300.0)
    assert (flow.band(7).max_requests, flow.band(-7).max_requests, flow.band(1).max_requests) == (
        100,
        10,
        5000,
    )
    assert (flow.band(7).max_bytes, flow.band(1).max_bytes) == (10**9, 2**30)
    assert flow.band(1).fairness.type_name == "round-robin-fairness-policy"
    assert flow.band(7).fairness.type_name == "global-strict-fairness-policy"
    assert flow.band(1).ordering.type_name == "slo-deadline-ordering-policy"
    assert flow.usage_limits.type_name == "priority-holdback-policy"
    assert flow.detector is config.scheduling.detector
    assert flow.evicts


def test_without_the_gate_the_section_is_read_for_its_detector_only() -> None:
    config = build(FLOW_CONTROL.replace("[flowControl]", '["flowControl=false"]'), REGISTRY)
    assert config.flow is None
    assert config.scheduling.detector.type_name == "concurrency-detector"
    assert any("the feature gate flowControl is off" in warning for warning in config.warnings)


def test_the_effective_configuration_of_flow_control_is_one_with_the_same_effect() -> None:
    once = build(FLOW_CONTROL, REGISTRY).effective
    again = build(yaml.safe_dump(once), REGISTRY).effective
    assert once == again
    assert once["flowControl"]["priorityBands"][0]["orderingPolicyRef"] == "slo-deadline-ordering-policy"


PAYLOAD_AGNOSTIC = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: passthrough-parser
- type: active-request-scorer
- type: session-affinity-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: active-request-scorer, weight: 1}
  - {pluginRef: session-affinity-scorer, weight: 1}
requestHandler:
  parsers: [{pluginRef: passthrough-parser}]
"""


def test_the_charts_payload_agnostic_configuration_reads_no_body_and_keeps_sessions() -> None:
    router = router_of(PAYLOAD_AGNOSTIC)
    assert not router.reading().parsers
    first = router.decide(InferenceRequest(request_id="r"), None, lambda _late: None)
    assert isinstance(first, Decision)
    record = Record(0.0)
    record.response_status = 200
    headers = dict(router.response_headers(first, record))
    router.ended(first, record)
    for _ in range(20):
        # All are idle and score 1; the session's server scores 1 more.
        again = router.decide(InferenceRequest(request_id="s", headers=headers), None, lambda _late: None)
        assert isinstance(again, Decision)
        assert again.endpoint == first.endpoint
        router.ended(again, record)
    # With a request in flight it scores 0 + 1, and the idle ones 1: no more than a tie.
    held = router.decide(InferenceRequest(request_id="t", headers=headers), None, lambda _late: None)
    assert isinstance(held, Decision)
    others = [router.decide(InferenceRequest(request_id="u"), None, lambda _late: None) for _ in range(2)]
    assert {each.endpoint for each in others if isinstance(each, Decision)}.isdisjoint({first.endpoint})


@pytest.mark.parametrize(
    ("text", "status"),
    [
        pytest.param(WHOLE, 0, id="all that is offered"),
        pytest.param(NOT_YET, 1, id="all that is not"),
        pytest.param(PAYLOAD_AGNOSTIC, 0, id="payload agnostic"),
        pytest.param(chart("parameters: {defaultEngine: triton}", "passthrough-parser"), 0, id="triton"),
        pytest.param(chart(parser="vllmgrpc-parser"), 0, id="vLLM's gRPC"),
    ],
)
def test_check_config_says_the_same(
    text: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert run([str(file)]) == status
    out, err = capsys.readouterr()
    assert bool(out) is (status == 0)
    assert bool(err) is (status == 1)
    if out:
        # What it prints is accepted, and comes to the same.
        assert build(out, REGISTRY).effective == yaml.safe_load(out)


def staged(order: str, plugins: str, profiles: str, version: str = "llm-d.ai/v1alpha1") -> str:
    return f"""
apiVersion: {version}
kind: EndpointPickerConfig
plugins:
{plugins}
- type: queue-scorer
- type: prefill-filter
- type: decode-filter
- type: prefix-based-pd-decider
  parameters: {{nonCachedTokens: 16}}
{order}
schedulingProfiles:
{profiles}
"""


PREFILL_DECODE = """
- name: prefill
  plugins:
  - pluginRef: prefill-filter
  - pluginRef: max-score-picker
  - {pluginRef: prefix-cache-scorer, weight: 2}
  - {pluginRef: queue-scorer, weight: 1}
- name: decode
  plugins:
  - pluginRef: decode-filter
  - pluginRef: max-score-picker
  - {pluginRef: prefix-cache-scorer, weight: 2}
  - {pluginRef: queue-scorer, weight: 1}
"""
HANDLER = "- {type: disagg-profile-handler, parameters: {deciders: {prefill: prefix-based-pd-decider}}}"
APPROX = """
- type: approx-prefix-cache-producer
  parameters:
    {blockSizeTokens: 16, autoTune: false, maxPrefixTokensToMatch: 4096, lruCapacityPerServer: 31250}
- type: prefix-cache-scorer
- type: max-score-picker
"""
ENCODE_TOO = """
- type: disagg-headers-handler
- type: encode-filter
- type: always-disagg-multimodal-decider
- type: disagg-profile-handler
  parameters:
    deciders: {encode: always-disagg-multimodal-decider, prefill: prefix-based-pd-decider}
"""
THREE = """
- name: encode
  plugins: [{pluginRef: encode-filter}]
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: queue-scorer, weight: 1}]
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: queue-scorer, weight: 1}]
"""
OLD_HANDLER = """
- {type: pd-profile-handler, parameters: {deciderPluginName: prefix-based-pd-decider, primaryPort: 8000}}
- {type: prefill-header-handler}
"""
COORDINATED = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: decode-filter}
- {type: queue-scorer}
- {type: max-score-picker}
- {type: single-profile-handler}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: decode-filter}, {pluginRef: queue-scorer, weight: 1}, {pluginRef: max-score-picker}]
"""


@pytest.mark.parametrize(
    ("config", "stages"),
    [
        pytest.param(staged(HANDLER, APPROX, PREFILL_DECODE), ["decode", "prefill"], id="P/D"),
        pytest.param(
            staged("", ENCODE_TOO, THREE, "inference.networking.x-k8s.io/v1alpha1"),
            ["decode", "encode", "prefill"],
            id="E/P/D, old group and header plugin",
        ),
        pytest.param(
            staged(OLD_HANDLER, APPROX, PREFILL_DECODE), ["decode", "prefill"], id="deprecated P/D handler"
        ),
        pytest.param(COORDINATED, ["default"], id="decode picker of a coordinator"),
    ],
)
def test_configurations_of_disaggregated_pools_load_and_decide(
    config: str, stages: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(config)
    assert run([str(file)]) == 0, capsys.readouterr().err
    router = build_router(config_text=config, clock=lambda: 100.0, rng=np.random.default_rng(1))
    assert not router.config_error, router.config_error
    router.replace_endpoints(
        Endpoint(role, "d", f"10.0.0.{at}", 8000, labels={"llm-d.ai/role": role})
        for at, role in enumerate(("encode", "prefill", "decode"))
    )
    prompt = b"\x03" + bytes(399)
    answer = router.decide(InferenceRequest(request_id="r", prompt=prompt), None, lambda _late: None)
    assert isinstance(answer, Decision)
    assert [each.profile for each in answer.reservations] == stages
    assert answer.endpoint == "10.0.0.2:8000"
