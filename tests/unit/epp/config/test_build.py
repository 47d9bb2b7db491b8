"""Reading an EndpointPickerConfig: defaults, what it makes, and faults told by path."""

from collections.abc import Callable

import pytest

from endpoint_picker.config.build import build
from endpoint_picker.config.picker_config import PickerConfig
from endpoint_picker.config.registry import Registry
from endpoint_picker.config_errors import ConfigError
from endpoint_picker.datalayer.adapters import AdapterReading
from endpoint_picker.datalayer.file_discovery import endpoints_in
from endpoint_picker.datalayer.metrics_page import PageReader
from endpoint_picker.scheduling.plugin import Plugin
from endpoint_picker.scheduling.producers.approx_prefix_cache import ApproxPrefixCacheProducer
from inference_api.default_picker_config import DEFAULT_PICKER_CONFIG

REGISTRY = Registry.installed()
PROFILE = """
plugins: [{{type: {kind}}}]
schedulingProfiles: [{{name: d, plugins: [{{pluginRef: {kind}, weight: {weight}}}]}}]
"""


def built(text: str) -> PickerConfig:
    return build(text, REGISTRY)


def weights(config: PickerConfig) -> dict[str, float]:
    return {each.name: each.weight for each in config.scheduling.profiles[0].scorers}


@pytest.mark.parametrize("text", ["", "  \n", DEFAULT_PICKER_CONFIG])
def test_the_default(text: str) -> None:
    config = built(text)
    assert weights(config) == {"queue-scorer": 2, "kv-cache-utilization-scorer": 2, "prefix-cache-scorer": 3}
    assert config.scheduling.profiles[0].name == "default"
    assert config.scheduling.profiles[0].producers
    assert config.scrape is not None
    assert config.scrape.path == "/metrics"
    assert config.warnings == ()


def test_json_and_the_older_group_are_read() -> None:
    config = built('{"apiVersion": "inference.networking.x-k8s.io/v1alpha1", "kind": "EndpointPickerConfig"}')
    assert weights(config) == {}
    assert "llm-d.ai/v1alpha1" in config.warnings[0]


def test_without_profiles_one_holds_all_plugins_in_order() -> None:
    config = built(
        "plugins: [{type: load-aware-scorer}, {type: queue-scorer, name: q}, {type: random-picker}]"
    )
    assert weights(config) == {"load-aware-scorer": 1, "q": 1}
    assert not config.scheduling.profiles[0].producers


def test_an_instance_is_referred_to_by_its_name() -> None:
    config = built("""
plugins:
- {type: load-aware-scorer, name: soft, parameters: {threshold: 10}}
- {type: load-aware-scorer, name: hard}
- {type: single-profile-handler}
schedulingProfiles: [{name: mine, plugins: [{pluginRef: soft, weight: 0.5}, {pluginRef: hard}]}]
""")
    assert config.scheduling.profiles[0].name == "mine"
    assert weights(config) == {"soft": 0.5, "hard": 1}


def test_settings_of_the_built_in_parts_are_read() -> None:
    config = built("""
plugins:
- type: approx-prefix-cache-producer
  parameters: {blockSize: 128, maxPrefixTokensToMatch: 0, maxPrefixBlocksToMatch: 10}
- {type: metrics-data-source, parameters: {path: /prom}}
- {type: core-metrics-extractor, parameters: {defaultEngine: sglang}}
- {type: utilization-detector, name: full, parameters: {queueDepthThreshold: 1}}
dataLayer: {sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: core-metrics-extractor}]}]}
flowControl: {saturationDetector: {pluginRef: full}}
featureGates: ["flowControl=false"]
""")
    (prefix,) = [each for each in config.scheduling.plugins if isinstance(each, ApproxPrefixCacheProducer)]
    assert prefix.params.block_size_tokens == 128
    assert prefix.params.max_tokens == 1280
    assert config.scrape is not None
    assert config.scrape.path == "/prom"
    assert config.scrape.default_engine == "sglang"


def engines(*configs: str, default: str = "vllm") -> PickerConfig:
    listed = ", ".join(configs)
    return built(
        "plugins: [{type: core-metrics-extractor, "
        f"parameters: {{defaultEngine: {default}, engineConfigs: [{listed}]}}}}]"
    )


def test_further_engines_are_read() -> None:
    config = engines(
        "{name: mine, queuedRequestsSpec: 'q{kind=waiting, zone=\"a\"}', runningRequestsSpec: r, "
        "cacheInfoSpec: info, cacheBlockSizeLabelName: size, cacheNumBlocksLabelName: count}",
        default="mine",
    )
    assert config.scrape is not None
    assert {"mine", "vllm", "triton"} <= config.scrape.engines.keys()
    page = b'#\nq{kind="done",zone="a"} 9\nq{kind="waiting",zone="a"} 2\nr 3\ninfo{size="8",count="70"} 1\n'
    reading = PageReader(config.scrape.engines["mine"]).read(page)
    assert (reading.waiting, reading.running, reading.block_size, reading.num_blocks) == (2, 3, 8, 70)
    assert not reading.missing


def test_adapters_and_custom_metrics_of_a_further_engine_are_read() -> None:
    config = built(
        "plugins: [{type: lora-affinity-scorer}, {type: metrics-data-source, name: metrics}, "
        "{type: core-metrics-extractor, name: mine, parameters: {engineConfigs: "
        "[{name: mine, queuedRequestsSpec: q, loraSpec: adapters, "
        "customMetrics: [{attributeKey: Cost, metricSpec: 'cost{kind=x}'}]}]}}]\n"
        "dataLayer: {sources: [{pluginRef: metrics, extractors: [{pluginRef: mine}]}]}"
    )
    assert config.scrape is not None
    reader = PageReader(config.scrape.engines["mine"], config.scrape.extractor)
    page = b'#\nq 1\nadapters{max_lora="2",running_lora_adapters="a"} 5\ncost{kind="x"} 3\n'
    reading = reader.read(page)
    assert reading.adapters == AdapterReading(frozenset("a"), frozenset(), 2)
    assert dict(reading.attributes) == {("mine", "Cost"): 3.0}


def test_pages_are_searched_for_adapters_only_when_a_plugin_reads_them() -> None:
    assert built("").scrape.engines["vllm"].lora is None  # type: ignore[union-attr]
    with_scorer = built("plugins: [{type: lora-affinity-scorer}]").scrape
    assert with_scorer is not None
    assert with_scorer.engines["vllm"].lora is not None


def test_two_custom_metrics_of_one_key_are_refused() -> None:
    metric = "{attributeKey: a, metricSpec: x}"
    text = (
        "plugins: [{type: core-metrics-extractor, parameters: {engineConfigs: [{name: mine, "
        f"queuedRequestsSpec: q, customMetrics: [{metric}, {metric}]}}]}}}}]"
    )
    with pytest.raises(ConfigError, match="two customMetrics have one attributeKey"):
        built(text)


def test_an_engine_takes_the_place_of_a_built_in_one() -> None:
    config = engines("{name: vllm, kvUsageSpec: mine}")
    assert config.scrape is not None
    assert PageReader(config.scrape.engines["vllm"]).read(b"#\nmine 0.5\n").kv_usage == 0.5


@pytest.mark.parametrize(
    ("config", "default"),
    [
        pytest.param("{name: a, kvUsageSpec: b}", "c", id="unknown default"),
        pytest.param("{name: a, kvUsageSpec: 'b{c'}", "vllm", id="an open brace"),
        pytest.param("{name: a, kvUsageSpec: 'b{c}'}", "vllm", id="a label without value"),
        pytest.param("{name: a, kvUsageSpec: 'b c'}", "vllm", id="a space in the name"),
        pytest.param("{name: a}", "vllm", id="no load"),
        pytest.param("{name: a, kvUsageSpec: b}, {name: a, kvUsageSpec: c}", "vllm", id="two of one name"),
        pytest.param(
            "{name: a, kvUsageSpec: b, cacheInfoSpec: c, cacheBlockSizeSpec: d}",
            "vllm",
            id="two ways to blocks",
        ),
        pytest.param("{name: a, kvUsageSpec: b, sleepSpec: c}", "vllm", id="what would do nothing"),
    ],
)
def test_an_engine_that_cannot_be_read_is_refused(config: str, default: str) -> None:
    with pytest.raises(ConfigError, match=r"plugins\[0\]\.parameters"):
        engines(config, default=default)


def source(parameters: str) -> PickerConfig:
    return built(f"plugins: [{{type: metrics-data-source, parameters: {{{parameters}}}}}]")


def test_another_port_and_tls_are_read() -> None:
    config = source(
        "scheme: https, port: 8002, caCertPath: /ca, clientCertPath: /c, clientKeyPath: /k, "
        "serverName: model.test, bearerTokenFile: /token"
    )
    plan = config.scrape
    assert plan is not None
    assert (plan.port, plan.uses_tls, plan.server_name) == (8002, True, "model.test")
    assert plan.files == ("/ca", "/c", "/k", "/token")
    insecure = source("scheme: https, insecureSkipVerify: true").scrape
    assert insecure is not None
    assert insecure.insecure_skip_verify


def test_what_charts_render_for_plain_http_is_read() -> None:
    config = source("scheme: http, path: /metrics, insecureSkipVerify: true")
    assert config.scrape is not None
    assert not config.scrape.uses_tls


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param("scheme: https", id="neither verified nor explicitly not"),
        pytest.param("scheme: https, caCertPath: /ca, insecureSkipVerify: true", id="verified and not"),
        pytest.param("caCertPath: /ca", id="TLS settings without TLS"),
        pytest.param("bearerTokenFile: /token", id="a token in clear text"),
        pytest.param(
            "scheme: https, insecureSkipVerify: true, bearerTokenFile: /token", id="a token to a stranger"
        ),
        pytest.param("scheme: https, insecureSkipVerify: true, serverName: a", id="a name nobody checks"),
        pytest.param("scheme: https, caCertPath: /ca, clientKeyPath: /k", id="a key without certificate"),
        pytest.param("scheme: https, caCertPath: ca", id="a relative path"),
        pytest.param("port: 0", id="port 0"),
    ],
)
def test_a_source_that_cannot_be_asked_safely_is_refused(parameters: str) -> None:
    with pytest.raises(ConfigError, match=r"plugins\[0\]\.parameters"):
        source(parameters)


def test_scraping_can_be_left_out() -> None:
    assert built("dataLayer: {injectDefaults: false}").scrape is None


def test_renamed_types_are_read_with_a_warning() -> None:
    config = built("plugins: [{type: by-label-selector, parameters: {matchLabels: {a: b}}}]")
    assert len(config.scheduling.profiles[0].filters) == 1
    assert "label-selector-filter" in config.warnings[0]


def test_the_old_place_of_the_detector_is_read_with_a_warning() -> None:
    config = built(
        "plugins: [{type: utilization-detector}]\nsaturationDetector: {pluginRef: utilization-detector}"
    )
    assert "flowControl.saturationDetector" in config.warnings[0]


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        pytest.param("plugins: [", "", "not YAML at line", id="not YAML"),
        pytest.param("- a", "", "mapping", id="a list"),
        pytest.param("kind: Pod", "kind", "EndpointPickerConfig", id="another kind"),
        pytest.param("apiVersion: v2", "apiVersion", "llm-d.ai/v1alpha1", id="another version"),
        pytest.param("plugin: []", "plugin", "unknown key", id="unknown key"),
        pytest.param("plugins: [{name: a}]", "plugins[0].type", "required", id="no type"),
        pytest.param(
            "plugins: [{type: queue-scorr}]", "plugins[0].type", 'did you mean "queue-scorer"', id="mistyped"
        ),
        pytest.param(
            "plugins: [{type: prefix}]", "plugins[0].type", '"prefix-cache-scorer"? docs', id="its beginning"
        ),
        pytest.param(
            "plugins: [{type: zzz}]", "plugins[0].type", "known types: active-request", id="unknown type"
        ),
        pytest.param(
            "plugins: [{type: queue-scorer}, {type: queue-scorer}]",
            "plugins[1].name",
            "its own name",
            id="one name twice",
        ),
        pytest.param(
            "plugins: [{type: queue-scorer, parameters: {speed: 1}}]",
            "plugins[0].parameters.speed",
            "unknown key",
            id="unknown parameter",
        ),
        pytest.param(
            "plugins: [{type: load-aware-scorer, parameters: {threshold: -1}}]",
            "plugins[0].parameters.threshold",
            "greater than 0",
            id="parameter out of range",
        ),
        pytest.param(
            "schedulingProfiles: [{name: d, plugins: [{pluginRef: q}]}]",
            "schedulingProfiles[0].plugins[0].pluginRef",
            'no plugin is named "q"',
            id="dangling reference",
        ),
        pytest.param(
            "plugins: [{type: random-picker}, {type: max-score-picker}]",
            "schedulingProfiles[0].plugins",
            "more than one picker",
            id="two pickers",
        ),
        pytest.param(
            PROFILE.format(kind="random-picker", weight=1),
            "schedulingProfiles[0].plugins[0].weight",
            "no scorer",
            id="weight of a picker",
        ),
        pytest.param(
            PROFILE.format(kind="queue-scorer", weight=-1),
            "schedulingProfiles[0].plugins[0].weight",
            "greater than or equal to 0",
            id="negative weight",
        ),
        pytest.param(
            "schedulingProfiles: [{name: a}, {name: b}]", "schedulingProfiles", "keep one", id="two profiles"
        ),
        pytest.param(
            "dataLayer: {peerDiscovery: {pluginRef: x}}",
            "dataLayer.peerDiscovery",
            "not offered",
            id="not acted on",
        ),
        pytest.param(
            "flowControl: {defaultPriorityBand: {orderingPolicyRef: x}}",
            "flowControl.defaultPriorityBand.orderingPolicyRef",
            'no plugin is named "x"',
            id="unknown policy",
        ),
        pytest.param(
            "flowControl: {priorityBands: [{priority: 1, fairnessPolicyRef: fcfs-ordering-policy}]}",
            "flowControl.priorityBands[0].fairnessPolicyRef",
            "is no fairness policy",
            id="policy of another kind",
        ),
        pytest.param(
            "flowControl: {usageLimitPolicyPluginRef: fcfs-ordering-policy}",
            "flowControl.usageLimitPolicyPluginRef",
            "is no usage-limit policy",
            id="no usage limits",
        ),
        pytest.param(
            "flowControl: {priorityBands: [{priority: 1}, {priority: 1}]}",
            "flowControl.priorityBands[1].priority",
            "a second band of priority 1",
            id="two bands",
        ),
        pytest.param(
            "flowControl: {priorityBands: [{priority: 1, minShare: 0.6}, {priority: 2, minShare: 0.6}]}",
            "flowControl.priorityBands",
            "comes to 1.2",
            id="too many shares",
        ),
        pytest.param(
            "flowControl: {maxBytes: 5 apples}", "flowControl.maxBytes", "not a quantity", id="quantity"
        ),
        pytest.param(
            "flowControl: {modelLimits: [{model: m, maxRequests: 1}, {model: m, maxRequests: 2}]}",
            "flowControl.modelLimits[1].model",
            "a second limit",
            id="two limits",
        ),
        pytest.param(
            "plugins: [{type: round-robin-fairness-policy}]",
            "plugins[0]",
            "is used nowhere",
            id="policy not used",
        ),
        pytest.param("featureGates: [x=false]", "featureGates[0]", "unknown feature gate", id="unknown gate"),
        pytest.param(
            "plugins: [{type: queue-scorer}]\nflowControl: {saturationDetector: {pluginRef: queue-scorer}}",
            "flowControl.saturationDetector.pluginRef",
            "no saturation detector",
            id="scorer as detector",
        ),
        pytest.param(
            "plugins: [{type: queue-scorer}]\ndataLayer: {sources: [{pluginRef: queue-scorer}]}",
            "dataLayer.sources[0].pluginRef",
            "metrics-data-source",
            id="scorer as source",
        ),
        pytest.param("# " + "x" * (1 << 20), "", "longer than", id="too long"),
    ],
)
def test_faults_name_the_path_and_what_to_do(text: str, path: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        built(text)
    assert caught.value.path == path
    assert words in str(caught.value)


def test_a_plugin_that_cannot_be_imported_is_a_fault_of_the_configuration() -> None:
    def broken() -> object:
        raise ImportError("no module named torch")

    with pytest.raises(ConfigError, match=r"plugins\[0\]\.type: .*torch"):
        build("plugins: [{type: x}]", Registry({"x": broken}))
    with pytest.raises(ConfigError, match="not a subclass"):
        build("plugins: [{type: x}]", Registry({"x": lambda: dict}))


@pytest.mark.parametrize(
    "text",
    ["!!int ''", "!!bool maybe", "!!timestamp x", "plugins: !!float ''", "a: 2024-13-45", "!!binary é"],
)
def test_yaml_that_cannot_be_made_into_values_is_a_fault_of_the_text(text: str) -> None:
    with pytest.raises(ConfigError, match="not YAML"):
        built(text)
    with pytest.raises(ConfigError, match="not YAML"):
        endpoints_in(text)


class Faulty(Plugin):
    type_name = "faulty"

    def __init__(self, params: object) -> None:
        raise RuntimeError("no such model")


def unloadable() -> object:
    raise SyntaxError("half a file")


@pytest.mark.parametrize(("loader", "why"), [(lambda: Faulty, "no such model"), (unloadable, "half a file")])
def test_a_plugin_that_cannot_be_made_is_told_by_its_place(loader: Callable[[], object], why: str) -> None:
    with pytest.raises(ConfigError, match=rf"^plugins\[0\].*faulty.*{why}"):
        build("plugins: [{type: faulty}]", Registry({"faulty": loader}))
