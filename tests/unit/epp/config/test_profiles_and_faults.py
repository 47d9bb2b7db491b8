"""Several profiles, what no part uses, deprecated names, and every fault of a text at once."""

import numpy as np
import pytest

from endpoint_picker.config.build import build
from endpoint_picker.config.registry import Registry
from endpoint_picker.config_errors import ConfigError
from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.decision import Decision, Refusal
from endpoint_picker.extproc.steering import steer
from endpoint_picker.observability.decisions import Decisions
from endpoint_picker.outcomes import Outcome
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.plugin import Pool
from endpoint_picker.scheduling.scheduler import Scheduler
from ext_proc import wire

REGISTRY = Registry.installed()
BY_HEADER = """
plugins:
- {{type: header-profile-handler, parameters: {parameters}}}
- {{type: label-selector-filter, name: small, parameters: {{matchLabels: {{size: small}}}}}}
- {{type: label-selector-filter, name: large, parameters: {{matchLabels: {{size: large}}}}}}
schedulingProfiles:
- {{name: decode, plugins: [{{pluginRef: small}}]}}
- {{name: big, plugins: [{{pluginRef: large}}]}}
"""


def scheduler_of(text: str) -> Scheduler:
    pool = Pool(clock=lambda: 0.0)
    pool.table.replace(
        [
            Endpoint("p0-rank-0", "default", "10.0.0.1", 8001, labels={"size": "small"}),
            Endpoint("p1-rank-0", "default", "10.0.0.2", 8001, labels={"size": "large"}),
        ]
    )

    def fail(fault: Exception) -> None:
        raise fault

    scheduling = build(text, REGISTRY).scheduling
    return Scheduler(pool, scheduling, np.random.default_rng(1), Decisions(pool.table, pool.clock), fail)


def decided(text: str, headers: dict[str, str]) -> Decision | Refusal:
    answer = scheduler_of(text).decide(InferenceRequest(request_id="r", headers=headers), None)
    assert isinstance(answer, Decision | Refusal)
    return answer


@pytest.mark.parametrize(
    ("parameters", "headers", "destination"),
    [
        ("{}", {}, "10.0.0.1:8001"),
        ("{}", {"epp-profile": "big"}, "10.0.0.2:8001"),
        ("{}", {"epp-profile": ""}, "10.0.0.1:8001"),
        ("{defaultProfile: big}", {}, "10.0.0.2:8001"),
        ("{headerName: X-Size}", {"x-size": "big", "epp-profile": "decode"}, "10.0.0.2:8001"),
    ],
)
def test_a_header_names_the_profile(parameters: str, headers: dict[str, str], destination: str) -> None:
    answer = decided(BY_HEADER.format(parameters=parameters), headers)
    assert isinstance(answer, Decision)
    assert answer.destination == destination


def test_a_header_that_names_no_profile_is_refused() -> None:
    answer = decided(BY_HEADER.format(parameters="{}"), {"epp-profile": "huge"})
    assert isinstance(answer, Refusal)
    assert answer.outcome is Outcome.NO_ENDPOINTS


def test_a_lone_profile_runs_whatever_the_header_says() -> None:
    text = "plugins: [{type: header-profile-handler}, {type: queue-scorer}]"
    assert isinstance(decided(text, {"epp-profile": "huge"}), Decision)


def test_a_rank_is_named_in_a_header_and_its_pod_entered_by_the_primary_port() -> None:
    text = "plugins: [{type: data-parallel-profile-handler}, {type: queue-scorer}]"
    scheduler = scheduler_of(text)
    answer = scheduler.decide(InferenceRequest(request_id="r"), ["10.0.0.2"])
    assert isinstance(answer, Decision)
    assert answer.destination == answer.endpoint == "10.0.0.2:8000"
    assert answer.headers == (("x-data-parallel-host-port", "10.0.0.2:8001"),)
    assert scheduler.pool.table.inflight_requests.tolist()[:2] == [0, 1]
    sent = steer(answer.destination, ["x-data-parallel-host-port"], answer.headers).mutation
    assert wire.set_header("x-data-parallel-host-port", b"10.0.0.2:8001") in sent


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        pytest.param(
            BY_HEADER.format(parameters="{defaultProfile: tiny}"),
            "schedulingProfiles",
            'defaultProfile is "tiny", which is no profile',
            id="default profile that is none",
        ),
        pytest.param(
            "schedulingProfiles: [{name: a}, {name: a}]",
            "schedulingProfiles[1].name",
            'two profiles are named "a"',
            id="one name twice",
        ),
        pytest.param(
            "plugins: [{type: single-profile-handler}, {type: header-profile-handler}]",
            "plugins[1]",
            "a second profile handler",
            id="two handlers",
        ),
        pytest.param(
            "plugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: a}]",
            "plugins[0]",
            "used nowhere",
            id="scorer that no profile has",
        ),
        pytest.param(
            "plugins: [{type: metrics-data-source}]\ndataLayer: {injectDefaults: false}",
            "plugins[0]",
            "used nowhere",
            id="source that is not read",
        ),
        pytest.param(
            "plugins: [{type: utilization-detector}, {type: utilization-detector, name: b}]\n"
            "schedulingProfiles: [{name: p}]",
            "plugins[1]",
            "used nowhere",
            id="second detector",
        ),
        pytest.param(
            "plugins: [{type: utilization-detector, parameters: {headroom: 0.5}}]\n"
            "schedulingProfiles: [{name: p}]",
            "plugins[0].parameters.headroom",
            "only the filter reads it",
            id="headroom of a detector that does not filter",
        ),
        pytest.param(
            "plugins: [{type: concurrency-detector, parameters: {maxTokenConcurrency: 5}}]",
            "plugins[0].parameters",
            "not read in concurrencyMode requests",
            id="limit that the mode does not read",
        ),
        pytest.param(
            "plugins: [{type: disaggregatedset-rollout-screener}]",
            "plugins[0].parameters",
            "give headerSelectors, or revisionGating",
            id="screener that screens nothing",
        ),
        pytest.param(
            "plugins: [{type: utilization-detector}]\n"
            "saturationDetector: {pluginRef: utilization-detector}\n"
            "flowControl: {saturationDetector: {pluginRef: utilization-detector}}",
            "saturationDetector",
            "remove this one",
            id="detector in both places",
        ),
        pytest.param(
            "plugins: [{type: approx-prefix-cache-producer,"
            " parameters: {blockSize: 64, blockSizeTokens: 64}}]",
            "plugins[0].parameters",
            "keep blockSizeTokens only",
            id="block size under both names",
        ),
        pytest.param(
            "featureGates: [haPopulateNonLeaderDatastore=false]",
            "featureGates[0]",
            "cannot be switched off",
            id="gate off",
        ),
        pytest.param("featureGates: [flowControl=maybe]", "featureGates[0]", "neither", id="no boolean"),
    ],
)
def test_what_would_do_nothing_is_a_fault(text: str, path: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(text, REGISTRY)
    assert caught.value.path == path
    assert words in str(caught.value)


def test_all_faults_are_found_at_once_and_none_that_only_follows() -> None:
    text = """
featureGates: [x]
plugins:
- {type: queue-scorer, parameters: {speed: 1, rate: 2}}
- {type: nope}
- {type: random-picker}
schedulingProfiles:
- name: a
  plugins: [{pluginRef: queue-scorer}, {pluginRef: random-picker, weight: 1}, {pluginRef: missing}]
flowControl: {saturationDetector: {pluginRef: random-picker}}
"""
    with pytest.raises(ConfigError) as caught:
        build(text, REGISTRY)
    assert [each.path for each in caught.value.faults] == [
        "featureGates[0]",
        "plugins[0].parameters.speed",
        "plugins[0].parameters.rate",
        "plugins[1].type",
        "schedulingProfiles[0].plugins[1].weight",
        "schedulingProfiles[0].plugins[2].pluginRef",
        "flowControl.saturationDetector.pluginRef",
    ]
    assert "(and 2 more)" in str(caught.value)


def test_deprecated_parameters_and_idle_producers_are_warned_of() -> None:
    text = "plugins: [{type: approx-prefix-cache-producer, parameters: {blockSize: 64}}]"
    deprecated, idle = build(text, REGISTRY).warnings
    assert deprecated == "plugins[0].parameters.blockSize is deprecated; write blockSizeTokens"
    assert "does not run" in idle
    assert build("featureGates: [haPopulateNonLeaderDatastore, flowControl=false]", REGISTRY).warnings == ()
