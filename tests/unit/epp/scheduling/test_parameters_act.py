"""Every parameter of every plugin changes what the plugin does. A parameter without a row here fails."""

import base64
import json
from array import array
from typing import Any

import msgspec
import numpy as np
import pytest
from pydantic import ValidationError
from typing_extensions import override

from endpoint_picker.config.build import build
from endpoint_picker.config.registry import Registry
from endpoint_picker.config.settings_plugins import CoreMetricsExtractor, DcgmDataSource, MetricsDataSource
from endpoint_picker.datalayer.adapters import AdapterReading
from endpoint_picker.datalayer.table import Endpoint, EndpointTable
from endpoint_picker.decision import Decision, Reservation
from endpoint_picker.flowcontrol.policies import FairnessPolicy, UsageLimitPolicy
from endpoint_picker.flowcontrol.queued import Flow, Queued
from endpoint_picker.latency.objectives import Objectives
from endpoint_picker.latency.prediction import Prediction
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest, Tokens
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.decider import Decider
from endpoint_picker.scheduling.filters.session_affinity import SessionAffinityFilter
from endpoint_picker.scheduling.handlers.header_writers import PrefillHeaderHandler
from endpoint_picker.scheduling.handlers.prediction_profile import PredictionProfileHandler
from endpoint_picker.scheduling.hold import Hold
from endpoint_picker.scheduling.plugin import (
    Admitter,
    Filter,
    Follower,
    Picker,
    Plugin,
    Pool,
    Producer,
    RequestReader,
    SaturationDetector,
    Scorer,
    Screener,
)
from endpoint_picker.scheduling.producers.inflight_load import InflightLoadProducer
from endpoint_picker.scheduling.producers.mm_embeddings_cache import MmEmbeddingsCacheProducer
from endpoint_picker.scheduling.producers.precise_prefix_cache import PrecisePrefixCacheProducer
from endpoint_picker.scheduling.producers.predicted_latency import PredictedLatencyProducer
from endpoint_picker.scheduling.producers.token import TokenProducer
from endpoint_picker.scheduling.profile import Profile
from endpoint_picker.scheduling.profile_handler import ProfileHandler
from endpoint_picker.scheduling.reporters.request_attribute import RequestAttributeReporter
from endpoint_picker.scheduling.scorers.session_affinity import SessionAffinityScorer
from endpoint_picker.scheduling.topology import TopologyExtractor, TopologyParams
from ext_proc.body.usage import Usage
from latency_contract.prediction_wire import Prediction as ServerAnswer
from latency_contract.prediction_wire import decode_request, encode_answer
from latency_contract.schema import COLUMN
from latency_contract.states import State

REGISTRY = Registry.installed()
LABELS = [
    {
        "range": "0-100",
        "llm-d.ai/context-length-range": "0-99",
        "zone": "a",
        "rack": "x",
        "topology.kubernetes.io/zone": "z",
    },
    {
        "range": "0-4000",
        "llm-d.ai/context-length-range": "500-900",
        "zone": "b",
        "rack": "y",
        "topology.kubernetes.io/zone": "z",
    },
    {"range": "2000-4000", "llm-d.ai/context-length-range": "0-4000", "zone": "c", "rack": "z"},
    {"zone": "b", "rack": "x"},
]
HEADERS = {
    "zone": "b",
    "rack": "x",
    "cookie": "c=3; a=1; b=2",
    "x-session-token": base64.b64encode(b"default/p1").decode(),
    "other-token": base64.b64encode(b"default/p2").decode(),
    "x-session-id": "s",
}
REQUEST = InferenceRequest(request_id="r", model="m", prompt=b"p" * 4800, headers=HEADERS, body_bytes=5000)

SHEDDABLE = InferenceRequest(request_id="r")
SHEDDABLE.priority = -1
REVISIONS = {"revisionLabelKey": "zone"}

SOURCE: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "scheme": ({"insecureSkipVerify": True}, None, "https"),
    "path": ({}, None, "/prom"),
    "port": ({}, None, 8002),
    "interval": ({}, None, "200ms"),
    "insecureSkipVerify": ({}, None, True),
    "caCertPath": ({"scheme": "https"}, "/a", "/b"),
    "clientCertPath": ({"scheme": "https", "insecureSkipVerify": True}, None, "/c"),
    "clientKeyPath": (
        {"scheme": "https", "insecureSkipVerify": True, "clientCertPath": "/c"},
        None,
        "/k",
    ),
    "serverName": ({"scheme": "https", "caCertPath": "/a"}, None, "model.test"),
    "bearerTokenFile": ({"scheme": "https", "caCertPath": "/a"}, None, "/t"),
}

BELOW_TWO = {"type": "threshold", "threshold": {"operator": "LessThan", "value": 2}}
LOWER = {"type": "linear_lower_is_better"}


SESSION_CHANGES: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "strategy": ({}, None, "session_id"),
    "encodedEndpointHeaderConfig": ({}, None, {"header": "other-token"}),
    "sessionIdConfig": ({"strategy": "session_id"}, None, {"sources": [{"header": "other-session"}]}),
    "profileName": ({}, None, "prefill"),
}


class ChoosesPeer(ProfileHandler):
    """A stand-in of a handler that runs several profiles."""

    __slots__ = ()
    type_name = "chooses-peer"
    chooses_peer = True

    @override
    def stage_of(self, profile: str) -> str:
        return profile

    @override
    def schedule(self, *_: Any) -> Any:
        raise NotImplementedError


#: The other plugins of the configuration that a plugin finds itself in.
AROUND: dict[str, Plugin] = {
    "handler": ChoosesPeer(None),
    "topology-extractor": TopologyExtractor(TopologyParams()),
    "by-zone": TopologyExtractor(TopologyParams(hostname_label="zone")),
}

PRECISE_CHANGES: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "tokenProcessorConfig": ({"speculativeIndexing": True}, None, {"blockSizeTokens": 64}),
    "indexerConfig": ({}, None, {"kvBlockIndexConfig": {"inMemoryConfig": {"size": 1}}}),
    "kvEventsConfig": ({}, None, {"podDiscoveryConfig": {"socketPort": 5556}}),
    "speculativeIndexing": ({}, None, True),
    "speculativeTTL": ({"speculativeIndexing": True}, None, "10s"),
}

#: type -> parameter -> (the other parameters, one value, another). None as a value leaves the parameter out.
CHANGES: dict[str, dict[str, tuple[dict[str, Any], Any, Any]]] = {
    "agent-identity": {"additionalSessionHeaders": ({}, None, ["Zone"])},
    "active-request-scorer": {"idleThreshold": ({}, None, 2), "maxBusyScore": ({}, None, 0.0)},
    "approx-prefix-cache-producer": {
        "autoTune": ({}, None, False),
        "blockSizeTokens": ({"autoTune": False}, None, 128),
        "blockSize": ({"autoTune": False}, None, 128),
        "maxPrefixTokensToMatch": ({}, None, 256),
        "maxPrefixBlocksToMatch": ({"maxPrefixTokensToMatch": 0}, None, 3),
        "lruCapacityPerServer": ({"autoTune": False}, None, 2),
    },
    "concurrency-detector": {
        "concurrencyMode": ({}, None, "tokens"),
        "maxConcurrency": ({}, None, 3),
        "maxTokenConcurrency": ({"concurrencyMode": "tokens"}, None, 3000),
        "headroom": ({"maxConcurrency": 3}, None, 0.5),
    },
    "context-length-aware": {"label": ({}, None, "range"), "enableFiltering": ({}, None, True)},
    "by-label": {
        "label": ({"validValues": ["b"]}, "zone", "rack"),
        "validValues": ({"label": "zone"}, ["a"], ["b", "c"]),
        "allowsNoLabel": ({"label": "range", "validValues": ["0-100"]}, None, True),
    },
    "core-metrics-extractor": {
        "engineLabelKey": ({}, None, "engine"),
        "defaultEngine": ({}, None, "sglang"),
        "cacheHitRate": ({}, None, True),
        "engineConfigs": ({}, None, [{"name": "vllm", "kvUsageSpec": "usage"}]),
    },
    "disagg-headers-handler": {
        "prefillProfile": ({}, None, "p"),
        "encodeProfile": ({}, None, "e"),
    },
    "disagg-profile-handler": {
        "stageOrder": ({}, None, "prefill-first"),
        "profiles": ({}, None, {"decode": "d"}),
        "deciders": ({}, None, {"prefill": "no"}),
        "decodeProfile": ({}, None, "d"),
        "prefillProfile": ({}, None, "p"),
        "encodeProfile": ({}, None, "e"),
        "prefillDeciderPluginName": ({}, None, "no"),
        "encodeDeciderPluginName": ({}, None, "no"),
        "deciderPluginName": ({}, None, "no"),
    },
    "pd-profile-handler": {
        "decodeProfile": ({}, None, "d"),
        "prefillProfile": ({}, None, "p"),
        "deciderPluginName": ({}, None, "no"),
        "primaryPort": ({}, None, 9000),
    },
    "prefill-header-handler": {"prefillProfile": ({}, None, "p")},
    "prefix-based-pd-decider": {
        "nonCachedTokens": ({}, None, 100),
        "promptTokens": ({"nonCachedTokens": 100}, None, 2000),
    },
    "data-parallel-profile-handler": {"primaryPort": ({}, None, 9000)},
    "disaggregatedset-rollout-screener": {
        "scope": ({"revisionGating": REVISIONS}, None, {"labelSelector": {"matchLabels": {"rack": "y"}}}),
        "headerSelectors": (
            {"revisionGating": {**REVISIONS, "mode": "disabled"}},
            [{"name": "zone", "headerName": "zone", "labelKey": "zone"}],
            [{"name": "rack", "headerName": "rack", "labelKey": "rack"}],
        ),
        "revisionGating": (
            {"headerSelectors": [{"name": "z", "headerName": "zone", "labelKey": "zone"}]},
            None,
            {"revisionLabelKey": "rack"},
        ),
    },
    "dcgm-data-source": {**SOURCE, "useNodeAddress": ({}, None, True)},
    "endpoint-attribute-filter": {
        "attribute": ({"algorithm": BELOW_TWO}, "cost", "heat"),
        "producer": ({"attribute": "cost", "algorithm": BELOW_TWO}, None, "other"),
        "algorithm": (
            {"attribute": "cost"},
            BELOW_TWO,
            {"type": "threshold", "threshold": {"operator": "Equal", "value": 2}},
        ),
        "onMissing": ({"attribute": "cost", "algorithm": BELOW_TWO}, None, "Fail"),
        "fallbackOnEmpty": (
            {
                "attribute": "cost",
                "onMissing": "Fail",
                "algorithm": {"type": "threshold", "threshold": {"operator": "LessThan", "value": 0}},
            },
            None,
            True,
        ),
    },
    "endpoint-attribute-scorer": {
        "attributeKey": ({"algorithm": LOWER}, "cost", "heat"),
        "producer": ({"attributeKey": "cost", "algorithm": LOWER}, None, "other"),
        "algorithm": ({"attributeKey": "cost"}, LOWER, {"type": "linear_higher_is_better"}),
    },
    "header-profile-handler": {
        "headerName": ({"defaultProfile": "a"}, "zone", "rack"),
        "defaultProfile": ({}, "a", "c"),
    },
    "header-label-affinity-scorer": {
        "headerName": ({"labelKey": "zone"}, "Zone", "rack"),
        "labelKey": ({"headerName": "zone"}, "zone", "rack"),
    },
    "inflight-load-producer": {
        "addEstimatedOutputTokens": ({}, None, True),
        "outputRatio": ({"addEstimatedOutputTokens": True}, None, 2.0),
        "maxEstimatedOutputTokens": ({"addEstimatedOutputTokens": True}, None, 10),
    },
    "label-selector-filter": {
        "matchLabels": ({}, None, {"zone": "b"}),
        "matchExpressions": ({}, None, [{"key": "range", "operator": "Exists"}]),
    },
    "latency-scorer": {
        "ttftWeight": ({}, None, 0.1),
        "tpotWeight": ({}, None, 5),
        "headroomSelectionStrategy": ({}, None, "most"),
        "compositeKVWeight": ({"compositeQueueWeight": 1}, None, 5),
        "compositeQueueWeight": ({"compositeKVWeight": 1}, None, 5),
        "compositePrefixWeight": ({"compositeKVWeight": 1}, None, 5),
    },
    "load-aware-scorer": {"threshold": ({}, None, 4)},
    "lora-affinity-scorer": {"rememberIdle": ({}, None, 0)},
    "max-score-picker": {"maxNumOfEndpoints": ({}, None, 1)},
    "metrics-data-source": SOURCE,
    "no-hit-lru-scorer": {"lruSize": ({}, None, 1)},
    "probabilistic-admitter": {
        "queueDepthThreshold": ({"k": 1.0}, None, 1000),
        "kvCacheUtilThreshold": ({"queueDepthThreshold": 1000, "k": 1.0}, None, 0.1),
        "power": ({"k": 0.5, "queueDepthThreshold": 50}, None, 1.0),
        "k": ({"queueDepthThreshold": 1000, "power": 1.0}, None, 0.1),
    },
    "predicted-latency-producer": {
        "mode": ({}, None, "All"),
        "streamingMode": ({}, None, True),
        "predictInProduce": ({}, None, False),
        "budgetMs": ({}, None, 50),
        "quantile": ({}, None, 0.8),
        "holdoutPercent": ({}, None, 20),
        "sloBufferFactor": ({"streamingMode": True}, None, 0.5),
        "endpointRoleLabel": ({}, None, "rack"),
        "endpointClassLabel": ({}, None, "zone"),
    },
    "prediction-profile-handler": {
        "predictedProfile": ({"heuristicProfile": "a"}, "b", "x"),
        "heuristicProfile": ({"predictedProfile": "a"}, "b", "x"),
    },
    "priority-holdback-policy": {
        "domain": ({"minCeiling": 0.5}, None, "value"),
        "minCeiling": ({}, 0.5, 0.4),
        "maxCeiling": ({"minCeiling": 0.4}, None, 0.9),
    },
    "program-aware-fairness": {
        "evictionTtlSeconds": ({}, None, 1.0),
        "lasWeightService": ({}, None, 0.0),
        "lasWeightHeadWait": ({}, None, 9.0),
        "lasHalfLifeSeconds": ({}, None, 0.5),
    },
    "static-usage-limit-policy": {"threshold": ({}, None, 0.5)},
    "token-fairness-policy": {
        "completionWeight": ({}, None, 5.0),
        "weights": ({}, None, {"a": 4}),
    },
    "prefix-cache-affinity-filter": {
        "affinityThreshold": ({}, None, 0.1),
        "ttftSource": ({"maxTTFTPenaltyMs": 300}, None, "latencyPredictor"),
        "explorationProbability": ({"maxTTFTPenaltyMs": 0}, None, 1.0),
        "maxTTFTPenaltyMs": ({}, 0, 10),
        "peakPrefillThroughput": ({}, None, 1.0),
    },
    "mm-embeddings-cache-producer": {"cacheSizeInMBPerServer": ({}, None, 2)},
    "precise-prefix-cache-producer": PRECISE_CHANGES,
    "precise-prefix-cache-scorer": PRECISE_CHANGES,
    "token-producer": {
        "modelName": ({"vllm": {}}, "a", "b"),
        "budget": ({}, None, "100ms"),
        "vllm": ({}, None, {"url": "http://10.0.0.9:8000"}),
        "modelServers": ({}, None, {"port": 8001}),
        "local": ({}, None, {"file": "/tokenizer.json"}),
        "estimate": ({}, None, {}),
        "backend": ({}, None, "vllm"),
    },
    "prefix-cache-scorer": {
        "matchLengthWeight": ({}, None, 0.5),
        "matchLengthScaleTokens": ({"matchLengthWeight": 0.5}, None, 640),
    },
    "random-picker": {"maxNumOfEndpoints": ({}, None, 1)},
    "request-attribute-reporter": {
        "attributes": (
            {},
            [{"key": {"name": "n"}, "expression": "usage.prompt_tokens"}],
            [{"key": {"name": "n"}, "expression": "usage.completion_tokens"}],
        ),
    },
    "session-affinity-filter": SESSION_CHANGES,
    "session-affinity-scorer": SESSION_CHANGES,
    "session-id-producer": {
        "headerName": ({}, "Zone", "rack"),
        "cookieName": ({}, "a", "b"),
    },
    "topology-affinity-filter": {
        "minAffinity": ({}, None, "zone"),
        "topologyProducerName": ({}, None, "by-zone"),
    },
    "topology-affinity-scorer": {"topologyProducerName": ({}, None, "by-zone")},
    "topology-extractor": {
        "hostnameLabel": ({}, None, "zone"),
        "rackLabel": ({}, None, "rack"),
        "zoneLabel": ({}, None, "zone"),
        "regionLabel": ({}, None, "zone"),
    },
    "slo-headroom-tier-filter": {"epsilonExploreNeg": ({}, None, 1.0)},
    "token-load-scorer": {"queueThresholdTokens": ({}, None, 1000)},
    "utilization-detector": {
        "queueDepthThreshold": ({}, None, 1),
        "kvCacheUtilThreshold": ({"queueDepthThreshold": 100}, None, 0.1),
        "metricsStalenessThreshold": ({}, None, "50ms"),
        "headroom": ({}, None, 0.5),
    },
    "utilization-filter": {
        "conditions": (
            {},
            [{"metric": "waiting-queue", "maxValue": 3}],
            [{"metric": "kv-cache-utilization", "maxValue": 0.3}],
        ),
        "fallbackOnEmpty": ({"conditions": [{"metric": "active-requests", "maxValue": 0}]}, None, True),
    },
    "weighted-random-picker": {"maxNumOfEndpoints": ({}, None, 1)},
}
#: Parameters of which there is one value only: the name is read so that configurations of others load.
ONE_VALUE = {
    ("priority-holdback-policy", "shape"),
    ("program-aware-fairness", "strategy"),
    ("program-aware-fairness", "evictionSweepSeconds"),
    # It chooses among producers of the configuration: tests/unit/epp/config/test_precise_prefix.py.
    ("prefix-cache-scorer", "prefixMatchInfoProducerName"),
    ("no-hit-lru-scorer", "prefixMatchInfoProducerName"),
}


def keys_of(kind: type[Plugin]) -> set[str]:
    return {str(field.alias) for field in kind.params_type.model_fields.values()}


def pool_of_four() -> Pool:
    pool = Pool(clock=lambda: 100.1)
    pool.rng = np.random.default_rng(1)
    table = pool.table
    table.replace(
        Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000, labels=labels, node=f"node-{n % 3}")
        for n, labels in enumerate(LABELS)
    )
    rows = table.ready_rows
    table.waiting[rows] = [1, 3, 5, 9]
    table.running[rows] = [4, 3, 2, 1]
    table.kv_usage[rows] = [0.5, 0.4, 0.3, 0.2]
    table.inflight_requests[rows] = [1, 2, 3, 4]
    table.inflight_tokens[rows] = [4000, 3000, 2000, 1000]
    table.block_size[rows] = 256
    table.num_blocks[rows] = 8
    table.scraped_at[rows] = 100.0
    for row in rows.tolist():
        table.attributes.write(row, ("core-metrics-extractor", "heat"), -row, at=100.0)
        table.attributes.write(row, ("other", "cost"), 5 - row % 2, at=100.0)
        if row < 3:
            table.attributes.write(row, ("core-metrics-extractor", "cost"), row, at=100.0)
        for running in ({"m"} if row == 2 else set(), set()):
            table.adapters.report(row, AdapterReading(frozenset(running), frozenset(), 4), at=100.0)
    return pool


def observed_session(
    plugin: SessionAffinityFilter | SessionAffinityScorer, candidates: Candidates, table: EndpointTable
) -> list[Any]:
    """Return what a request does whose session was bound to the third endpoint, and its response."""
    primary, other = Reservation(2, 0, 0), Reservation(3, 0, 0)
    primary.is_primary, other.profile = True, "prefill"
    plugin.decided(REQUEST, candidates, primary)
    plugin.decided(REQUEST, candidates, other)
    narrow = plugin.filter if isinstance(plugin, SessionAffinityFilter) else plugin.score
    chosen = narrow(REQUEST, candidates, table).tolist()
    decision = Decision(destination="", endpoint="", reservations=(primary, other))
    return [chosen, plugin.response_headers(decision, Record(0.0))]


class Never(Decider):
    """A decider that says no."""

    __slots__ = ()
    type_name = "never"

    @override
    def wants(self, request: InferenceRequest, decode: Candidates) -> bool:
        return False


def observed_stages(plugin: ProfileHandler, candidates: Candidates, table: EndpointTable) -> list[Any]:
    """Return which profiles ran in which order, how the request enters, and what the handler refers to."""
    ran: list[str] = []

    def pick(name: str, at: int) -> Any:
        def picked(*_: Any) -> Any:
            ran.append(name)
            return np.arange(at, at + 2)

        return picked

    profiles = [
        Profile(name=name, filters=(), producers=(), scorers=(), pick=pick(name, at % 3))
        for at, name in enumerate(("decode", "prefill", "encode", "d", "p", "e"))
        if plugin.stage_of(name)
    ]
    for parameter in plugin.refers_to:
        assert not plugin.take(parameter, Never(None))
    chosen = plugin.schedule(REQUEST, candidates, table, np.random.default_rng(1), profiles)
    assert not isinstance(chosen, Hold)
    return [ran, [each.profile for each in chosen], candidates.entry_port, dict(plugin.refers_to)]


def observed_turns(policy: FairnessPolicy) -> list[Any]:
    """Return the order in which three flows are served, of which one is served longer answers."""
    lanes = policy.lanes()
    flows = [Flow(name, 0) for name in "abc"]
    for number, flow in enumerate(flows):
        for n in range(30):
            queued = Queued(REQUEST, None, lambda _answer: None, lambda _queued: None, flow.id, 100, number)
            queued.sequence = number * 100 + n
            flow.push(0.0, queued)
        lanes.activate(flow, 5.0)
    seen: list[Any] = []
    for turn in range(20):
        now = 5.0 + turn
        chosen = lanes.select(now)
        assert chosen is not None
        seen.append(chosen.id)
        chosen.pop()
        lanes.turned(chosen)
        lanes.served(chosen, 100 + policy.completion_weight * (300 if chosen.id == "c" else 50), now)
    return [*seen, [lanes.remembers(flow, 40.0) for flow in flows]]


def observed_events(plugin: PrecisePrefixCacheProducer, pool: Pool, candidates: Candidates) -> list[Any]:
    """Return what a prompt finds whose blocks one server announced, and after its time on its way."""
    times = [100.1]
    pool.clock = lambda: times[-1]
    pool.kv_sources.use(pool.kv_plan)
    tokens = array("I", range(256))
    events = [["BlockStored", [1, 2], None, tokens[:32].tolist(), 16, None, "GPU", None]]
    for source in pool.kv_sources:
        sent = events if source.row == 1 else []
        source.received(b"kv@s@m", bytes(8), msgspec.msgpack.encode([1.0, sent, 0]), times[-1])
    request = InferenceRequest(request_id="r", model="m")
    request.tokens = Tokens(tokens.tobytes(), "prompt")
    plugin.produce(request, candidates, pool.table)
    seen = [pool.kv_plan, candidates.prefix_matched.tolist(), candidates.block_tokens]
    plugin.decided(request, candidates, Reservation(2, 0, 0))
    for later in (101.0, 105.0):
        times.append(later)
        plugin.produce(request, candidates, pool.table)
        seen.append(candidates.prefix_matched.tolist())
    return seen


class Recording:
    """A prediction server that answers a second, and 20 ms a token, whatever it is asked."""

    servers = 1
    answers_at_once = True

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def send(self, server: int, message: bytes, timeout_s: float, answered: Any) -> None:
        asked = decode_request(message)
        self.seen += [timeout_s, asked.targets, asked.quantiles]
        self.seen += [asked.matrix[:, COLUMN[name]].tolist() for name in ("role", "endpoint_class")]
        times = np.array([1.0, 0.02], dtype=np.float32)[: len(asked.targets), None, None]
        seconds = np.broadcast_to(times, (len(asked.targets), 2, len(asked.matrix)))
        trusted = np.zeros(len(asked.matrix), dtype=np.uint8)
        answered(encode_answer(ServerAnswer(State.TRAINED, "v", asked.targets, trusted, seconds)))


def observed_prediction(plugin: PredictedLatencyProducer, pool: Pool) -> list[Any]:
    """Return what is asked about requests that opt in and that do not, and what they get."""
    link = Recording()
    pool.desk.connect(link)
    pool.desk.state = State.TRAINED
    for number in range(40):
        headers = {"x-slo-tpot-ms": "50", **({"x-prediction-based-scheduling": "true"} if number % 2 else {})}
        candidates = Candidates(pool.table.ready_rows)
        request = InferenceRequest(request_id=f"r{number}", model="m", prompt=b"p" * 800, headers=headers)
        assert plugin.produce(request, candidates, pool.table) is None
        assert candidates.prediction is not None
        link.seen += [candidates.prediction.reason, candidates.prediction.tpot_headroom.tolist()]
    return link.seen


def observed(kind: type[Plugin], parameters: dict[str, Any]) -> list[Any]:
    """Return what the plugin does in one situation, by everything that it is."""
    plugin = kind(kind.params_type.model_validate(parameters))
    pool = pool_of_four()
    table, rows = pool.table, pool.table.ready_rows
    plugin.attach(pool)
    candidates = Candidates(rows)
    candidates.peer = 0
    if isinstance(plugin, UsageLimitPolicy):
        return [plugin.ceilings([10, 9, 0, -10], 0.7)]
    if isinstance(plugin, FairnessPolicy):
        return observed_turns(plugin)
    if not any(key.startswith("composite") for key in parameters):
        ttft, tpot = np.array([0.9, 0.3, 0.5, 2.0]), np.array([0.01, 0.04, 0.02, 0.03])
        candidates.prediction = Prediction(rows, ttft, ttft, tpot, tpot, Objectives(1.0, 0.05))
    if isinstance(plugin, TopologyExtractor):
        return [plugin.place_of(each) for each in table.endpoints if each is not None]
    if isinstance(plugin, InflightLoadProducer):
        return [None if pool.output is None else pool.output.of(1000, 0)]
    if isinstance(plugin, RequestReader):
        plugin.read(request := InferenceRequest(request_id="r", headers=HEADERS))
        return [request.attributes]
    if kind.type_name.startswith("topology-affinity"):
        assert not plugin.fault_among(AROUND, [])
    if isinstance(plugin, SessionAffinityFilter | SessionAffinityScorer):
        return observed_session(plugin, candidates, table)
    if isinstance(plugin, PredictedLatencyProducer):
        return observed_prediction(plugin, pool)
    seen: list[Any] = []
    if isinstance(plugin, PrefillHeaderHandler):
        return [plugin.fault_among({"handler": ChoosesPeer(None)}, ["decode", "prefill", "encode"])]
    if isinstance(plugin, Decider):
        candidates.prompt_blocks, candidates.block_tokens = 4, 256
        candidates.prefix_matched, candidates.order = np.array([0.0, 0.0, 3.0, 0.0]), np.array([2])
        return [plugin.wants(REQUEST, candidates)]
    if isinstance(plugin, ProfileHandler) and plugin.chooses_peer:
        return observed_stages(plugin, candidates, table)
    if isinstance(plugin, PredictionProfileHandler):
        return [plugin.fault_of(each) for each in (("a", "b"), ("a", "x"))]
    if isinstance(plugin, ProfileHandler):
        profiles = [
            Profile(name=name, filters=(), producers=(), scorers=(), pick=lambda *_, at=at: rows[at:])
            for at, name in enumerate("abxc" if plugin.most_profiles > 1 else "a")
        ]
        ran = plugin.schedule(REQUEST, candidates, table, np.random.default_rng(1), profiles)
        assert not isinstance(ran, Hold)
        (chosen,) = ran
        return [chosen.order.tolist(), chosen.entry_port]
    if isinstance(plugin, TokenProducer):
        return [pool.token_plan]
    if isinstance(plugin, PrecisePrefixCacheProducer):
        return observed_events(plugin, pool, candidates)
    if isinstance(plugin, MmEmbeddingsCacheProducer):
        images = [{"image_url": {"url": f"http://i/{n}"}} for n in range(2)]
        request = InferenceRequest(request_id="r")
        request.chunks = (json.dumps({"messages": [{"role": "user", "content": images}]}).encode(),)
        plugin.decided(request, candidates, Reservation(0, 0, 0))
        plugin.produce(request, candidates, table)
        return [candidates.media_matched.tolist()]
    if isinstance(plugin, Producer):
        pool.index.follow_block_size()
        plugin.produce(REQUEST, candidates, table)
        assert isinstance(plugin, Follower)
        plugin.decided(REQUEST, candidates, Reservation(0, 0, 0))
        plugin.produce(REQUEST, candidates, table)
        return [candidates.prompt_blocks, candidates.block_tokens, candidates.prefix_matched.tolist()]
    if isinstance(plugin, Follower) and isinstance(plugin, Scorer):
        for row in (3, 1, 2):
            plugin.decided(REQUEST, candidates, Reservation(row, 0, 0))
    else:
        candidates.prompt_blocks, candidates.block_tokens = 20, 64
        candidates.prefix_matched = np.array([18.0, 4.0, 1.0, 0.0])
    if isinstance(plugin, Screener):
        seen.append(plugin.screen(REQUEST, rows, table).tolist())
    if isinstance(plugin, Admitter):
        # A share of refusals shows in many draws.
        seen.append(sum(bool(plugin.refusal(SHEDDABLE, rows, table, 100.1)) for _ in range(400)))
    if isinstance(plugin, Filter):
        seen.append(plugin.filter(REQUEST, candidates, table).tolist())
    if isinstance(plugin, Scorer):
        seen.append(plugin.score(REQUEST, candidates, table).tolist())
    if isinstance(plugin, Picker):
        scores = np.array([0.1, 0.9, 0.5, 0.3])
        seen.append(plugin.pick(candidates, scores, np.random.default_rng(1)).tolist())
    if isinstance(plugin, SaturationDetector):
        seen.append(plugin.saturation(rows, table, 100.1))
    if isinstance(plugin, RequestAttributeReporter):
        record = Record(0.0)
        record.usage = Usage(7, 3, 4)
        seen.append(plugin.response_complete(Decision(destination="", endpoint="", reservations=()), record))
    if isinstance(plugin, MetricsDataSource | CoreMetricsExtractor):
        text = f"plugins: [{{type: {kind.type_name}, parameters: {parameters}}}]"
        seen.append(build(text, REGISTRY).scrape)
    if isinstance(plugin, DcgmDataSource):
        listed = f"{{type: {kind.type_name}, parameters: {parameters}}}, {{type: dcgm-extractor}}"
        sources = "[{pluginRef: dcgm-data-source, extractors: [{pluginRef: dcgm-extractor}]}]"
        text = f"plugins: [{listed}]\ndataLayer: {{sources: {sources}}}"
        seen.append(build(text, REGISTRY).exporter)
    return seen


@pytest.mark.parametrize("name", REGISTRY.types)
def test_every_parameter_has_a_change_here(name: str) -> None:
    one_value = {key for kind, key in ONE_VALUE if kind == name}
    rows = set(CHANGES.get(name, {})) | one_value
    keys = keys_of(REGISTRY.find(name, ""))
    assert keys == rows, (
        f"in the table CHANGES of {__file__}, {name!r} lacks rows for {sorted(keys - rows)} "
        f"and has rows for {sorted(rows - keys)}, which are no parameters"
    )


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, keys in CHANGES.items() for key in keys])
def test_changing_a_parameter_changes_behaviour(name: str, key: str) -> None:
    others, before, after = CHANGES[name][key]
    kind = REGISTRY.find(name, "")
    one, other = (
        observed(kind, others if value is None else {**others, key: value}) for value in (before, after)
    )
    assert one
    assert one != other


@pytest.mark.parametrize("name", REGISTRY.types)
def test_zero_is_refused_or_is_not_the_default(name: str) -> None:
    kind = REGISTRY.find(name, "").params_type
    for field in kind.model_fields.values():
        if isinstance(field.default, int | float) and field.default:
            try:
                zero = kind.model_validate({str(field.alias): 0})
            except ValidationError:
                continue
            assert zero != kind()
