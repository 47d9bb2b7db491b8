"""A setting that is understood but would do nothing is an error: held over the whole shape of the file.

What a configuration does is compared as its *effect*: the plugins in each of its places, by type and
parameters, and the values that the scraper and the body reader take. Names are no part of it.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from endpoint_picker.config.build import build
from endpoint_picker.config.picker_config import PickerConfig
from endpoint_picker.config.registry import Registry
from endpoint_picker.config.schema import EndpointPickerConfig
from endpoint_picker.config_errors import ConfigError
from endpoint_picker.scheduling.plugin import Plugin

REGISTRY = Registry.installed()


def effect(config: PickerConfig) -> str:
    """Return what the configuration does."""
    shown = dict(config.effective)
    entries = {each.get("name", each["type"]): each for each in shown.pop("plugins")}
    # Plugins that act by being listed, by the places where the scheduler calls them.
    scheduling = config.scheduling
    bound: list[Any] = [
        *scheduling.readers,
        *scheduling.screeners,
        *scheduling.admitters,
        *scheduling.late_admitters,
        *scheduling.decided,
    ]
    bound += [*scheduling.hooks.response_headers, *scheduling.hooks.response_complete]
    bound += [each for profile in scheduling.profiles for each in profile.producers]
    acting = {type(each.__self__).type_name for each in bound} | {scheduling.handler.type_name}

    def resolved(value: Any) -> Any:
        if isinstance(value, dict):
            inner = {key: resolved(each) for key, each in value.items() if key not in ("name", "pluginRef")}
            if "pluginRef" in value:
                entry = entries[value["pluginRef"]]
                inner["plugin"] = [entry["type"], entry.get("parameters")]
            return inner
        return [resolved(each) for each in value] if isinstance(value, list) else value

    listed = [[each["type"], each.get("parameters")] for each in entries.values() if each["type"] in acting]
    return json.dumps(
        [resolved(shown), listed, repr(config.scrape), repr(config.exporter), repr(config.reading)],
        sort_keys=True,
    )


TWO_SCORERS = "plugins: [{type: queue-scorer}, {type: load-aware-scorer, name: b}]"
A_PICKER = "plugins: [{type: queue-scorer}, {type: random-picker}]"
BY_HEADER = "plugins: [{type: queue-scorer}, {type: header-profile-handler, parameters: {defaultProfile: a}}]"
EXTRACTOR = "plugins: [{type: metrics-data-source}, {type: core-metrics-extractor, name: b}]"
DETECTOR = "plugins: [{type: concurrency-detector}]"
PARSER = "plugins: [{type: passthrough-parser}]"
QUEUE = "featureGates: [flowControl]"
LIMIT = "flowControl: {{modelLimits: [{{model: {}, maxRequests: {}}}]}}"

#: Path of a key in the file's shape -> (head, one rest, another) that differ in this key. Names only name.
CHANGES = {
    "featureGates": ("", "featureGates: []", "featureGates: [flowControl]"),
    "plugins": ("", "plugins: []", "plugins: [{type: queue-scorer}]"),
    "plugins.type": ("", "plugins: [{type: queue-scorer}]", "plugins: [{type: load-aware-scorer}]"),
    "plugins.parameters": (
        "",
        "plugins: [{type: load-aware-scorer}]",
        "plugins: [{type: load-aware-scorer, parameters: {threshold: 7}}]",
    ),
    "schedulingProfiles": (
        BY_HEADER,
        "schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer}]}]",
        "schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer}]}, {name: b}]",
    ),
    "schedulingProfiles.plugins": (
        TWO_SCORERS,
        "schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer}, {pluginRef: b}]}]",
        "schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer}]}]",
    ),
    "schedulingProfiles.plugins.pluginRef": (
        A_PICKER,
        "schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer}]}]",
        "schedulingProfiles: [{name: a, plugins: [{pluginRef: random-picker}]}]",
    ),
    "schedulingProfiles.plugins.weight": (
        "plugins: [{type: queue-scorer}]",
        "schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer}]}]",
        "schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer, weight: 2}]}]",
    ),
    "dataLayer": ("", "plugins: []", "dataLayer: {injectDefaults: false}"),
    "dataLayer.injectDefaults": (
        "",
        "dataLayer: {injectDefaults: true}",
        "dataLayer: {injectDefaults: false}",
    ),
    "dataLayer.sources": (
        "plugins: [{type: metrics-data-source}]",
        "dataLayer: {injectDefaults: false, sources: [{pluginRef: metrics-data-source}]}",
        "dataLayer: {injectDefaults: false, sources: []}",
    ),
    "dataLayer.sources.pluginRef": (
        "plugins: [{type: metrics-data-source, name: a}, {type: queue-scorer, name: b}]",
        "dataLayer: {sources: [{pluginRef: a}]}",
        "dataLayer: {sources: [{pluginRef: b}]}",
    ),
    "dataLayer.sources.extractors": (
        EXTRACTOR,
        "dataLayer: {sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: b}]}]}",
        "dataLayer: {sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: c}]}]}",
    ),
    "flowControl": (
        DETECTOR,
        "schedulingProfiles: []",
        "flowControl: {saturationDetector: {pluginRef: concurrency-detector}}",
    ),
    **{
        f"flowControl.{key}": (QUEUE, f"flowControl: {{{key}: {one}}}", f"flowControl: {{{key}: {other}}}")
        for key, one, other in (
            ("maxBytes", "1G", "2G"),
            ("maxRequests", "0", "7"),
            ("defaultRequestTTL", "60s", "1s"),
            ("noEndpointRequestTTL", "60s", "1s"),
            ("trustTenantHeaders", "false", "true"),
            ("metricsFailOpenAfter", "5s", "1s"),
            ("enableEviction", "false", "true"),
            ("modelLimits", "[]", "[{model: a, maxRequests: 1}]"),
            ("priorityBands", "[]", "[{priority: 3}]"),
            ("defaultPriorityBand", "{}", "{maxRequests: 3}"),
            ("defaultNegativePriorityBand", "{}", "{maxRequests: 3}"),
        )
    },
    "flowControl.modelLimits.model": (QUEUE, LIMIT.format("a", 1), LIMIT.format("b", 1)),
    "flowControl.modelLimits.maxRequests": (QUEUE, LIMIT.format("a", 1), LIMIT.format("a", 2)),
    "flowControl.priorityBands.priority": (
        QUEUE,
        "flowControl: {priorityBands: [{priority: 1}]}",
        "flowControl: {priorityBands: [{priority: 2}]}",
    ),
    **{
        f"flowControl.{band}.{key}": (
            QUEUE,
            f"flowControl: {{{band}: {shape.format('')}}}",
            f"flowControl: {{{band}: {shape.format(f'{key}: {other}')}}}",
        )
        for band, shape in (
            ("defaultPriorityBand", "{{{}}}"),
            ("defaultNegativePriorityBand", "{{{}}}"),
            ("priorityBands", "[{{priority: 1, {}}}]"),
        )
        for key, other in (
            ("maxBytes", "1M"),
            ("maxRequests", "3"),
            ("minShare", "0.1"),
            ("maxWait", "3s"),
        )
    },
    "flowControl.usageLimitPolicyPluginRef": (
        f"{QUEUE}\nplugins: [{{type: static-usage-limit-policy, name: t, parameters: {{threshold: 0.5}}}}]",
        "flowControl: {usageLimitPolicyPluginRef: t}",
        "flowControl: {usageLimitPolicyPluginRef: static-usage-limit-policy}",
    ),
    **{
        f"flowControl.{band}.{key}": (
            f"featureGates: [flowControl]\nplugins: [{{type: {kind}, name: x}}]",
            f"flowControl: {{{band}: {shape.format(f'{key}: x')}}}",
            f"flowControl: {{{band}: {shape.format('')}}}",
        )
        for band, shape in (
            ("defaultPriorityBand", "{{{}}}"),
            ("defaultNegativePriorityBand", "{{{}}}"),
            ("priorityBands", "[{{priority: 1, {}}}]"),
        )
        for key, kind in (
            ("fairnessPolicyRef", "round-robin-fairness-policy"),
            ("orderingPolicyRef", "edf-ordering-policy"),
        )
    },
    "requestHandler": (
        PARSER,
        "schedulingProfiles: []",
        "requestHandler: {parsers: [{pluginRef: passthrough-parser}]}",
    ),
    "parser": (PARSER, "schedulingProfiles: []", "parser: {pluginRef: passthrough-parser}"),
    "saturationDetector": (
        DETECTOR,
        "schedulingProfiles: []",
        "saturationDetector: {pluginRef: concurrency-detector}",
    ),
}
#: Keys that only name something, or have one meaning in all their values.
NAMES = {"apiVersion", "kind", "plugins.name", "schedulingProfiles.name"}
#: Keys whose rows stand at another key: the sections with one key, and references like the one above.
ELSEWHERE = {
    "dataLayer.sources.extractors.pluginRef": "dataLayer.sources.extractors",
    "flowControl.saturationDetector": "flowControl",
    "flowControl.saturationDetector.pluginRef": "flowControl",
    "parser.pluginRef": "parser",
    "requestHandler.parsers": "requestHandler",
    "requestHandler.parsers.pluginRef": "requestHandler",
    "saturationDetector.pluginRef": "saturationDetector",
}


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for field in model.model_fields.values():
        yield f"{prefix}{field.alias}"
        for inner in models_in(field.annotation):
            yield from keys_of(inner, f"{prefix}{field.alias}.")


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in getattr(annotation, "__args__", ()):
        yield from models_in(each)


def outcome(text: str) -> str:
    """Return the effect of the text, or its faults."""
    try:
        return effect(build(text, REGISTRY))
    except ConfigError as error:
        return f"refused: {error}"


def test_every_key_of_the_shape_has_a_change_here() -> None:
    assert set(keys_of(EndpointPickerConfig)) == {*CHANGES, *NAMES, *ELSEWHERE}
    assert set(ELSEWHERE.values()) <= set(CHANGES)


@pytest.mark.parametrize("key", CHANGES)
def test_a_key_that_changes_changes_the_effect_or_is_a_fault(key: str) -> None:
    head, *rests = CHANGES[key]
    one, other = (outcome(f"{head}\n{rest}") for rest in rests)
    assert one != other
    assert not (one.startswith("refused") and other.startswith("refused"))


#: Plugins with parameters that differ from the defaults, so that each differs from what is added.
LISTED: list[dict[str, Any]] = [
    {"type": "label-selector-filter", "parameters": {"matchLabels": {"a": "b"}}},
    {"type": "prefix-cache-affinity-filter", "parameters": {"affinityThreshold": 0.5}},
    {"type": "context-length-aware", "parameters": {"label": "x"}},
    {"type": "queue-scorer"},
    {"type": "load-aware-scorer", "parameters": {"threshold": 7}},
    {"type": "no-hit-lru-scorer", "parameters": {"lruSize": 7}},
    {"type": "random-picker", "parameters": {"maxNumOfEndpoints": 2}},
    {"type": "weighted-random-picker", "parameters": {"maxNumOfEndpoints": 2}},
    {"type": "concurrency-detector", "parameters": {"maxConcurrency": 7, "headroom": 0.5}},
    {"type": "utilization-detector", "parameters": {"queueDepthThreshold": 7, "headroom": 0.5}},
    {"type": "approx-prefix-cache-producer", "parameters": {"blockSizeTokens": 128}},
    {"type": "header-profile-handler", "parameters": {"defaultProfile": "p0"}},
    {"type": "probabilistic-admitter", "parameters": {"power": 2}},
    {"type": "disaggregatedset-rollout-screener", "parameters": {"revisionGating": {}}},
    {"type": "destination-endpoint-served-verifier"},
    {"type": "session-id-producer", "parameters": {"headerName": "x"}},
    {
        "type": "session-affinity-filter",
        "parameters": {
            "strategy": "session_id",
            "sessionIdConfig": {"sources": [{"attribute": "SessionID"}]},
        },
    },
    {"type": "topology-extractor"},
    {"type": "slo-headroom-tier-filter", "parameters": {"epsilonExploreNeg": 0.5}},
    {"type": "latency-scorer", "parameters": {"ttftWeight": 7}},
    {"type": "latency-slo-admitter"},
    {"type": "predicted-latency-producer", "parameters": {"mode": "All"}},
    {
        "type": "request-attribute-reporter",
        "parameters": {"attributes": [{"key": {"name": "n"}, "expression": "1"}]},
    },
    {"type": "metrics-data-source", "parameters": {"port": 9}},
    {"type": "core-metrics-extractor", "parameters": {"defaultEngine": "sglang"}},
    {"type": "dcgm-data-source", "parameters": {"port": 9}},
    {"type": "dcgm-extractor"},
    {"type": "passthrough-parser"},
]


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    """Return a configuration whose references all resolve; whether it is a good one is for `build` to say."""
    plugins = draw(st.lists(st.sampled_from(LISTED), unique_by=lambda each: each["type"], max_size=7))
    names = [each["type"] for each in plugins]
    config: dict[str, Any] = {"plugins": plugins}
    if not names:
        return config
    some = st.lists(st.sampled_from(names), unique=True)
    profiles = [draw(some) for _ in range(draw(st.integers(0, 2)))]
    if profiles:
        config["schedulingProfiles"] = [
            {"name": f"p{at}", "plugins": [{"pluginRef": name} for name in refs]}
            for at, refs in enumerate(profiles)
        ]
    one = st.sampled_from([None, *names])
    if detector := draw(one):
        config["flowControl"] = {"saturationDetector": {"pluginRef": detector}}
    if parser := draw(one):
        config["requestHandler"] = {"parsers": [{"pluginRef": parser}]}
    if source := draw(one):
        extractors = [{"pluginRef": name} for name in draw(some)]
        config["dataLayer"] = {"sources": [{"pluginRef": source, "extractors": extractors}]}
    return config


def without(config: Any, name: str) -> Any:
    """Return the configuration without a plugin and without all references to it."""
    if isinstance(config, dict):
        kept = {key: without(value, name) for key, value in config.items()}
        return {key: value for key, value in kept.items() if value is not None}
    if isinstance(config, list):
        return [without(each, name) for each in config if name not in named(each)]
    return config


def named(entry: Any) -> tuple[str, ...]:
    return (entry.get("type", ""), entry.get("pluginRef", "")) if isinstance(entry, dict) else ()


@given(configurations())
@settings(deadline=None, max_examples=300)
def test_every_listed_plugin_acts_or_is_a_fault_or_a_warning(config: dict[str, Any]) -> None:
    text = yaml.safe_dump(config)
    try:
        built = build(text, REGISTRY)
    except ConfigError:
        return
    acts = effect(built)
    for plugin in config["plugins"]:
        name = plugin["type"]
        if name == "dcgm-extractor":
            continue  # without parameters it equals the one that is added for its source
        if any(f'"{name}"' in warning for warning in built.warnings):
            continue
        if name == "dcgm-extractor":  # it has no parameters: what is added is the same
            continue
        less = without(config, name)
        if less.get("flowControl") is not None and name == detector_of(config):
            del less["flowControl"]
        if less.get("requestHandler") is not None:
            less["requestHandler"]["parsers"] = less["requestHandler"]["parsers"] or []
        assert outcome(yaml.safe_dump(less)) != acts, f"{name} does nothing in\n{text}"


def detector_of(config: dict[str, Any]) -> str:
    return str(config["flowControl"]["saturationDetector"]["pluginRef"])


def test_the_list_has_a_plugin_of_every_kind() -> None:
    kinds = {base for each in LISTED for base in REGISTRY.find(each["type"], "").__mro__}
    assert {base for base in Plugin.__subclasses__() if base.__module__.endswith("scheduling.plugin")} <= {
        *kinds,
        *(base for base in Plugin.__subclasses__() if base.__name__ == "MayWait"),
    }
