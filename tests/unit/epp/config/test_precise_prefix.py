"""Configurations with the precise prefix cache: those of the field load, and faults are named."""

import importlib.util

import pytest

from endpoint_picker.config.build import build
from endpoint_picker.config.picker_config import PickerConfig
from endpoint_picker.config.registry import Registry
from endpoint_picker.config_errors import ConfigError
from endpoint_picker.routing import build_router
from endpoint_picker.scheduling.producers.approx_prefix_cache import ApproxPrefixCacheProducer
from endpoint_picker.scheduling.producers.precise_prefix_cache import PrecisePrefixCacheProducer

REGISTRY = Registry.installed()

#: The llm-d router's own example of the multimodal cache, and its guide for precise prefix caching.
FIELD = {
    "multimodal": """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: token-producer
  parameters: {backend: vllm, modelName: hf-repo/model-name, vllm: {url: "http://localhost:8000"}}
- type: endpoint-notification-source
- type: metrics-data-source
- type: core-metrics-extractor
- type: mm-embeddings-cache-producer
  parameters: {cacheSizeInMBPerServer: 2048}
- type: mm-embeddings-cache-scorer
- type: precise-prefix-cache-producer
  parameters:
    tokenProcessorConfig: {blockSize: 64}
    indexerConfig: {kvBlockIndexConfig: {enableMetrics: true}}
- type: prefix-cache-scorer
  parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}
- type: queue-scorer
- type: max-score-picker
- type: single-profile-handler
- type: decode-filter
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors: [{pluginRef: core-metrics-extractor}]
  - pluginRef: endpoint-notification-source
    extractors: [{pluginRef: mm-embeddings-cache-producer}, {pluginRef: precise-prefix-cache-producer}]
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: decode-filter
  - {pluginRef: prefix-cache-scorer, weight: 10}
  - {pluginRef: mm-embeddings-cache-scorer, weight: 4}
  - {pluginRef: queue-scorer, weight: 1}
  - pluginRef: max-score-picker
""",
    "guide": """
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: single-profile-handler
- type: tokenizer
  parameters: {modelName: Qwen/Qwen3-32B}
- type: precise-prefix-cache-producer
  parameters:
    tokenProcessorConfig: {blockSizeTokens: 64, hashSeed: "42", hashAlgorithm: cbor-fnv}
    indexerConfig:
      kvBlockIndexConfig: {inMemoryConfig: {size: 100000000, podCacheSize: 10}, metricsLoggingInterval: 60s}
      kvCacheBackendConfigs: [{name: gpu, weight: 1.0}, {name: cpu, weight: 0.8}]
    kvEventsConfig:
      topicFilter: "kv@"
      concurrency: 4
      engineType: vllm
      discoverPods: true
      podDiscoveryConfig:
        podLabelSelector: llm-d.ai/inference-serving=true
        socketPort: 5556
        replaySocketPort: 5559
    speculativeIndexing: true
    speculativeTTL: 2s
- type: prefix-cache-scorer
  parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}
- type: kv-cache-utilization-scorer
- type: queue-scorer
- type: no-hit-lru-scorer
  parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: prefix-cache-scorer, weight: 3.0}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2.0}
  - {pluginRef: queue-scorer, weight: 2.0}
  - {pluginRef: no-hit-lru-scorer, weight: 2.0}
""",
    "deprecated": """
plugins:
- type: precise-prefix-cache-scorer
  parameters:
    kvEventsConfig: {zmqEndpoint: "tcp://0.0.0.0:5557", discoverPods: false}
    indexerConfig: {kvBlockIndexConfig: {costAwareMemoryConfig: {size: 2GiB}}}
- type: max-score-picker
""",
}


def built(text: str) -> PickerConfig:
    return build(text, REGISTRY)


def producers(config: PickerConfig) -> list[str]:
    found = []
    for produce in config.scheduling.profiles[0].producers:
        found.append(type(produce.__self__).type_name)  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("name", FIELD)
def test_configurations_of_the_field_load(name: str) -> None:
    router = build_router(config_text=FIELD[name])
    assert not router.config_error
    assert router.pool.kv_sources.plan is not None
    assert router.pool.tokenizing.plan is not None
    if name == "deprecated":
        assert router.pool.kv.max_entries == 2**31 // 160
        assert producers(router.config) == ["token-producer", "precise-prefix-cache-scorer"]
    else:
        assert "precise-prefix-cache-producer" in producers(router.config)


def test_nothing_is_followed_without_the_producer_and_a_reload_keeps_what_is_known() -> None:
    router = build_router()
    assert router.pool.kv_sources.plan is None
    assert router.pool.tokenizing.plan is None
    assert router.apply_config(FIELD["guide"])
    plan = router.pool.kv_sources.plan
    router.pool.kv.note_model("Qwen/Qwen3-32B")
    assert router.apply_config(FIELD["guide"].replace("weight: 3.0", "weight: 4.0"))
    assert router.pool.kv_sources.plan is plan
    assert router.apply_config("")
    assert router.pool.kv_sources.plan is None


def test_settings_without_effect_are_taken_with_a_warning() -> None:
    warned = " ".join(built(FIELD["guide"]).warnings)
    for key in ("hashAlgorithm", "podCacheSize", "concurrency", "engineType", "metricsLoggingInterval"):
        assert key in warned


PRECISE = "plugins: [{type: precise-prefix-cache-producer, parameters: {%s}}]"
BOTH = """
plugins:
- type: approx-prefix-cache-producer
- type: precise-prefix-cache-producer
- type: prefix-cache-scorer
  parameters: {prefixMatchInfoProducerName: %s}
- type: no-hit-lru-scorer
  parameters: {prefixMatchInfoProducerName: %s}
"""


@pytest.mark.parametrize(
    ("named", "kind"),
    [
        ("approx-prefix-cache-producer", ApproxPrefixCacheProducer),
        ("precise-prefix-cache-producer", PrecisePrefixCacheProducer),
    ],
)
def test_plugins_name_the_producer_of_the_match(named: str, kind: type[object]) -> None:
    assert named in producers(built(BOTH % (named, named)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BOTH % ("precise-prefix-cache-producer", "approx-prefix-cache-producer"), "one is used for all"),
        (BOTH % ("queue", "queue"), 'no listed producer of prefix matches is named "queue"'),
        ("plugins: [{type: token-producer, parameters: {vllm: {}, local: {file: /a}}}]", "give one of vllm"),
        (
            "plugins: [{type: token-producer, parameters: {modelName: m, estimate: {}}}]",
            "modelName needs vllm",
        ),
        ("plugins: [{type: token-producer, parameters: {vllm: {caCertPath: /a}}}]", "https"),
        (
            PRECISE % "kvEventsConfig: {discoverPods: false}",
            "zmqEndpoint must say",
        ),
        (
            PRECISE % "indexerConfig: {tokenizersPoolConfig: {}}",
            "tokenizersPoolConfig",
        ),
    ],
)
def test_faults_are_named(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        built(text)


def test_a_tokenizer_file_needs_the_extra_and_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
plugins:
- {type: token-producer, parameters: {local: {file: /models/tokenizer.json}}}
- type: precise-prefix-cache-producer
- type: prefix-cache-scorer
"""
    built(text)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"headroom-operator\[tokenizers\]"):
        built(text)
