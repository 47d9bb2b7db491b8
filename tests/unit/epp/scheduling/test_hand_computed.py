"""Golden decisions: what each plugin answers in one small situation, worked out by hand beside each case.

The pool has three servers, p0 to p2, idle and freshly scraped unless a case says otherwise. A prompt of n
tokens is 4n bytes. A plugin without a case here fails the last test.
"""

import dataclasses
import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest

from endpoint_picker.config.build import build
from endpoint_picker.config.registry import Registry
from endpoint_picker.datalayer.adapters import AdapterReading
from endpoint_picker.datalayer.metrics_page import PageReader, engine_of
from endpoint_picker.datalayer.table import Endpoint, Floats
from endpoint_picker.decision import Decision, Reservation
from endpoint_picker.flowcontrol.policies import FairnessPolicy, OrderingPolicy, UsageLimitPolicy
from endpoint_picker.flowcontrol.queued import Flow, Queued
from endpoint_picker.latency.link import Link
from endpoint_picker.latency.objectives import NO_OBJECTIVES, Objectives
from endpoint_picker.latency.prediction import Prediction
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest, Tokens
from endpoint_picker.routing import build_router
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Pool
from ext_proc.body.usage import Usage
from latency_contract.prediction_wire import Prediction as ServerAnswer
from latency_contract.prediction_wire import PredictionRequest, decode_request, encode_answer
from latency_contract.schema import COLUMN
from latency_contract.states import State

NAN = np.nan
NOW = 100.0
REGISTRY = Registry.installed()


class Draws:
    """Randomness whose draws are given."""

    def __init__(self, *draws: float) -> None:
        self._draws = draws

    def random(self, size: int) -> Floats:
        assert size <= len(self._draws)
        return np.array(self._draws[:size])


@dataclass(frozen=True)
class Situation:
    """Columns have one value for each server."""

    waiting: Sequence[float] = (0, 0, 0)
    running: Sequence[float] = (0, 0, 0)
    kv_usage: Sequence[float] = (0, 0, 0)
    unseen: Sequence[int] = (0, 0, 0)
    requests: Sequence[int] = (0, 0, 0)
    """In flight from this picker."""
    tokens: Sequence[int] = (0, 0, 0)
    matched: Sequence[float] = (0, 0, 0)
    """Blocks of 64 tokens of the prompt that the server holds."""
    blocks: int = 0
    """Full blocks of the prompt."""
    age: Sequence[float] = (0, 0, 0)
    labels: Sequence[Mapping[str, str]] = ({}, {}, {})
    adapters: Sequence[AdapterReading | None] = (None, None, None)
    new_prompts: Sequence[int] = ()
    """Servers that the last prompts that no server held went to, the oldest first."""
    attributes: Sequence[float] = (NAN, NAN, NAN)
    """Attribute `cost` of core-metrics-extractor."""
    ttft: Sequence[float] = ()
    """Predicted seconds to the first token, also as the bound; empty: nothing is predicted."""
    tpot: Sequence[float] = (0, 0, 0)
    """Predicted seconds a token."""
    objectives: Objectives = NO_OBJECTIVES
    peer: int | None = None
    """Server that an earlier profile chose."""
    draws: Sequence[float] = (0.0, 0.0, 0.0)
    prompt_tokens: int = 0
    priority: int = 0
    model: str = "m"
    headers: Mapping[str, str] = field(default_factory=dict)


def made(kind: str, situation: Situation, parameters: dict[str, Any]) -> tuple[Any, Pool]:
    pool = Pool(clock=lambda: NOW)
    pool.rng = Draws(*situation.draws)
    table = pool.table
    table.replace(
        Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000, labels=labels)
        for n, labels in enumerate(situation.labels)
    )
    rows = table.ready_rows
    table.waiting[rows], table.running[rows] = situation.waiting, situation.running
    table.kv_usage[rows], table.unseen[rows] = situation.kv_usage, situation.unseen
    table.unseen_work[rows] = situation.unseen
    table.inflight_requests[rows], table.inflight_tokens[rows] = situation.requests, situation.tokens
    table.scraped_at[rows] = NOW - np.array(situation.age)
    for row, reading in zip(rows.tolist(), situation.adapters, strict=True):
        table.adapters.report(row, reading, NOW)
    for row, value in zip(rows.tolist(), situation.attributes, strict=True):
        table.attributes.write(row, ("core-metrics-extractor", "cost"), value, NOW)
    plugin_class = REGISTRY.find(kind, "")
    plugin = plugin_class(plugin_class.params_type.model_validate(parameters))
    plugin.attach(pool)
    return plugin, pool


def asked(situation: Situation, pool: Pool) -> tuple[Any, Any]:
    request = InferenceRequest(
        request_id="r",
        model=situation.model,
        prompt=b"p" * (4 * situation.prompt_tokens),
        headers=situation.headers,
    )
    request.priority = situation.priority
    candidates: Any = Candidates(pool.table.ready_rows)
    candidates.prompt_blocks, candidates.block_tokens = situation.blocks, 64
    candidates.prefix_matched = np.array(situation.matched, dtype=np.float64)
    if situation.ttft:
        ttft, tpot = np.array(situation.ttft), np.array(situation.tpot, dtype=np.float64)
        candidates.prediction = Prediction(candidates.rows, ttft, ttft, tpot, tpot, situation.objectives)
    if situation.peer is not None:
        candidates.peer = situation.peer
    return request, candidates


S = Situation

SCORES: list[tuple[str, str, dict[str, Any], Situation, list[float]]] = [
    # (max - q) / (max - min): (8-2)/(8-2), (8-5)/6, 0.
    ("queue-scorer", "relative", {}, S(waiting=(2, 5, 8)), [1.0, 0.5, 0.0]),
    # What was sent since the scrape counts: q = 2+4, 5, 8; (8-6)/3, (8-5)/3, 0.
    ("queue-scorer", "unseen", {}, S(waiting=(2, 5, 8), unseen=(4, 0, 0)), [2 / 3, 1.0, 0.0]),
    ("queue-scorer", "equal", {}, S(waiting=(3, 3, 3)), [1.0, 1.0, 1.0]),
    # An unknown queue is worst while another one is known.
    ("queue-scorer", "unknown", {}, S(waiting=(NAN, 5, 9)), [0.0, 1.0, 0.0]),
    # Without any metrics: requests in flight, (3-1)/2, (3-2)/2, 0.
    ("queue-scorer", "no metrics", {}, S(waiting=(NAN, NAN, NAN), requests=(1, 2, 3)), [1.0, 0.5, 0.0]),
    # (40 - r) / 30.
    ("running-requests-size-scorer", "relative", {}, S(running=(10, 40, 25)), [1.0, 0.0, 0.5]),
    # 1 - usage; unknown is 0.
    ("kv-cache-utilization-scorer", "free part", {}, S(kv_usage=(0.25, 1.0, NAN)), [0.75, 0.0, 0.0]),
    # 0.5 * (1 - min(q, 128) / 128): 0.5 * (1 - 0), 0.5 * (1 - 32/128), 0.5 * (1 - 1).
    ("load-aware-scorer", "absolute", {}, S(waiting=(0, 32, 500)), [0.5, 0.375, 0.0]),
    # 0.5 * (1 - min(3 + 1, 8) / 8); unknown is 0.
    (
        "load-aware-scorer",
        "threshold",
        {"threshold": 8},
        S(waiting=(3, 0, NAN), unseen=(1, 0, 0)),
        [0.25, 0.5, 0],
    ),
    # Idle is 1; else (10 - c) / 10.
    ("active-request-scorer", "busy", {}, S(requests=(0, 4, 10)), [1.0, 0.6, 0.0]),
    # Up to 4 is idle; else (10 - c) / 10 * 0.5.
    (
        "active-request-scorer",
        "threshold and ceiling",
        {"idleThreshold": 4, "maxBusyScore": 0.5},
        S(requests=(4, 6, 10)),
        [1.0, 0.2, 0.0],
    ),
    # Of 10 blocks of 64 tokens 10, 5 and 0 are held: 0, 320 and 640 tokens more.
    # 1 - (200+0)/1000, 1 - (0+320)/1000, 1 - min(600+640, 1000)/1000.
    (
        "token-load-scorer",
        "tokens",
        {"queueThresholdTokens": 1000},
        S(tokens=(200, 0, 600), blocks=10, matched=(10, 5, 0)),
        [0.8, 0.68, 0.0],
    ),
    # match / total.
    ("prefix-cache-scorer", "ratio", {}, S(blocks=20, matched=(20, 5, 0)), [1.0, 0.25, 0.0]),
    # 0.5 * min(1, m*64/2560)^2 + 0.5 * m/40: 40 blocks: 0.5 + 0.5; 20: 0.5 * (1280/2560)^2 + 0.25 = 0.375.
    (
        "prefix-cache-scorer",
        "length",
        {"matchLengthWeight": 0.5, "matchLengthScaleTokens": 2560},
        S(blocks=40, matched=(40, 20, 0)),
        [1.0, 0.375, 0.0],
    ),
    ("prefix-cache-scorer", "no full block", {}, S(), [0.0, 0.0, 0.0]),
    # Known prompt.
    ("no-hit-lru-scorer", "known prompt", {}, S(blocks=4, matched=(0, 1, 0)), [0.5, 0.5, 0.5]),
    # Never used: p1 (rank 0); then p2 and p0 by age (ranks 1 and 2): 1 - rank/2.
    ("no-hit-lru-scorer", "new prompt", {}, S(blocks=4, new_prompts=(0, 2, 0)), [0.0, 1.0, 0.5]),
    # Only one is remembered, p0: p1 and p2 rank 0 and 1, p0 rank 2.
    (
        "no-hit-lru-scorer",
        "small memory",
        {"lruSize": 1},
        S(blocks=4, new_prompts=(2, 0)),
        [0.0, 1.0, 0.5],
    ),
    (
        "header-label-affinity-scorer",
        "equal value",
        {"headerName": "X-Zone", "labelKey": "zone"},
        S(headers={"x-zone": "b"}, labels=({"zone": "a"}, {"zone": "b"}, {})),
        [0.0, 1.0, 0.0],
    ),
    # 2,000 tokens. "0-8000": width 8,000, 0.3 + 0.7 * (0.7/1.8 + 0.3 * 6000/8000) = 0.729722.
    # "4000-8000": 2,000 away, 0.3 / (1 + 2) = 0.1. No label: 0.5.
    (
        "context-length-aware",
        "ranges",
        {},
        S(
            prompt_tokens=2000,
            labels=(
                {"llm-d.ai/context-length-range": "0-8000"},
                {"llm-d.ai/context-length-range": "4000-8000"},
                {},
            ),
        ),
        [0.3 + 0.7 * (0.7 / 1.8 + 0.225), 0.1, 0.5],
    ),
    # p0 runs the adapter: 1. p1 has a free slot: 0.8. p2 is full of others that run: 0.
    (
        "lora-affinity-scorer",
        "slots",
        {},
        S(
            model="a",
            adapters=(
                AdapterReading(frozenset({"a"}), frozenset(), 1),
                AdapterReading(frozenset({"b"}), frozenset(), 2),
                AdapterReading(frozenset({"b", "c"}), frozenset(), 2),
            ),
        ),
        [1.0, 0.8, 0.0],
    ),
    # p0 has the adapter waiting behind full slots: 0.6.
    (
        "lora-affinity-scorer",
        "waiting",
        {},
        S(
            model="a",
            adapters=(
                AdapterReading(frozenset({"b"}), frozenset({"a"}), 1),
                AdapterReading(frozenset({"b"}), frozenset(), 1),
                AdapterReading(frozenset({"c"}), frozenset(), 1),
            ),
        ),
        [0.6, 0.0, 0.0],
    ),
]

SLO = Objectives(1.0, 0.05)

SCORES += [
    # Headrooms 0.8, 0.4, -0.2 and 0.01, 0.03, 0.04: p2 misses. Scaled among p0 and p1: TTFT 1, 0; TPOT 0, 1.
    # c = 0.8 and 0.2; least: (int(20) + 1) / 100 and (int(80) + 1) / 100.
    (
        "latency-scorer",
        "least",
        {},
        S(ttft=(0.2, 0.6, 1.2), tpot=(0.04, 0.02, 0.01), objectives=SLO),
        [0.21, 0.81, 0.0],
    ),
    (
        "latency-scorer",
        "most",
        {"headroomSelectionStrategy": "most"},
        S(ttft=(0.2, 0.6, 1.2), tpot=(0.04, 0.02, 0.01), objectives=SLO),
        [0.81, 0.21, 0.0],
    ),
    # p2, the fastest, misses TPOT. Among p0 and p1 TTFT is 0.2 and 0.6, TPOT 0.04 and 0.02: c = 0.8 * 0 + 0.2
    # and 0.8 + 0.2 * 0; (int(80) + 1) / 100 and (int(20) + 1) / 100.
    (
        "latency-scorer",
        "fastest",
        {"headroomSelectionStrategy": "fastest"},
        S(ttft=(0.2, 0.6, 0.1), tpot=(0.04, 0.02, 0.06), objectives=SLO, requests=(1, 1, 1)),
        [0.81, 0.21, 0.0],
    ),
    # All miss TTFT: times decide, not what is missed.
    (
        "latency-scorer",
        "fastest of those that miss",
        {"headroomSelectionStrategy": "fastest"},
        S(ttft=(2, 3, 4), tpot=(0.02, 0.02, 0.02), objectives=SLO, requests=(1, 1, 1)),
        [1.0, 0.51, 0.01],
    ),
    # All miss, p1 is idle: it alone is scored; without a range 0.5 gives (int(50) + 1) / 100.
    ("latency-scorer", "idle", {}, S(ttft=(2, 3, 4), objectives=SLO, requests=(1, 0, 1)), [0, 0.51, 0]),
    # p2 misses TPOT alone, the others TTFT: only p2 is scored.
    (
        "latency-scorer",
        "misses TPOT alone",
        {},
        S(ttft=(2, 3, 0.5), tpot=(0.01, 0.01, 0.2), objectives=SLO, requests=(1, 1, 1)),
        [0, 0, 0.51],
    ),
    # No objective: the headrooms are -1, -2, -3; TPOT has no range, so c = 0, 0.5, 1.
    ("latency-scorer", "no objective", {}, S(ttft=(1, 2, 3), requests=(1, 1, 1)), [1.0, 0.51, 0.01]),
    # p0 is unknown: 0. TTFT alone is judged: headrooms 0.5 and 0.1; c = 1 and 0.
    (
        "latency-scorer",
        "unknown",
        {},
        S(ttft=(NAN, 0.5, 0.9), tpot=(NAN, 9, 9), objectives=Objectives(1.0, 0.0)),
        [0.0, 0.01, 1.0],
    ),
    # Nothing predicted: (0.6 + (4-4)/4 + 1) / 3 = 0.533; (0.8 + 0.75 + 0) / 3 = 0.517; (0 + 0 + 0.5) / 3.
    (
        "latency-scorer",
        "composite",
        {},
        S(waiting=(4, 1, NAN), kv_usage=(0.4, 0.2, NAN), blocks=10, matched=(10, 0, 5)),
        [0.53, 0.52, 0.17],
    ),
]

#: base64 of "default/p1".
TOKEN_P1 = "ZGVmYXVsdC9wMQ=="
#: p0 shares the rack of p2, p1 its zone alone.
PLACES: Sequence[Mapping[str, str]] = (
    {"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/rack": "r"},
    {"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/rack": "s"},
    {"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/rack": "r"},
)
LOWER = {"type": "linear_lower_is_better"}

SCORES += [
    ("session-affinity-scorer", "token", {}, S(headers={"x-session-token": TOKEN_P1}), [0, 1, 0]),
    # "default/p9" is no server of the pool.
    (
        "session-affinity-scorer",
        "foreign token",
        {},
        S(headers={"x-session-token": "ZGVmYXVsdC9wOQ=="}),
        [0, 0, 0],
    ),
    # The range is 2 to 6: 1 - (2-2)/4, 1 - (5-2)/4, 1 - (6-2)/4.
    (
        "endpoint-attribute-scorer",
        "adaptive",
        {"attributeKey": "cost", "algorithm": LOWER},
        S(attributes=(2, 5, 6)),
        [1.0, 0.25, 0.0],
    ),
    # The range is 0 to 10: 2/10, 5/10; unknown is 0.
    (
        "endpoint-attribute-scorer",
        "fixed",
        {
            "attributeKey": "cost",
            "algorithm": {
                "type": "linear_higher_is_better",
                "normalization": {"fixedRange": {"min": 0, "max": 10}},
            },
        },
        S(attributes=(2, 5, NAN)),
        [0.2, 0.5, 0.0],
    ),
    # The peer is p2: its rack 0.2, its zone 0.05. Of itself the host is not known, the rack is.
    ("topology-affinity-scorer", "levels", {}, S(labels=PLACES, peer=2), [0.2, 0.05, 0.2]),
    ("topology-affinity-scorer", "no peer", {}, S(labels=PLACES), [0, 0, 0]),
]

ROLES: Sequence[Mapping[str, str]] = ({"tier": "a"}, {"tier": "b"}, {})

KEPT: list[tuple[str, str, dict[str, Any], Situation, list[int]]] = [
    ("label-selector-filter", "label", {"matchLabels": {"tier": "b"}}, S(labels=ROLES), [1]),
    # NotIn is met by p2, which has no label.
    (
        "label-selector-filter",
        "expression",
        {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["a"]}]},
        S(labels=ROLES),
        [1, 2],
    ),
    (
        "header-based-testing-filter",
        "named",
        {},
        S(headers={"test-epp-endpoint-selection": "10.0.0.2:8000,10.0.0.0"}),
        [0, 2],
    ),
    (
        "header-based-testing-filter",
        "unknown",
        {},
        S(headers={"test-epp-endpoint-selection": "10.9.9.9"}),
        [0, 1, 2],
    ),
    # 2,000 tokens are in 0-2000 and not in 2001-4000; p2 has no range.
    (
        "context-length-aware",
        "ranges",
        {"enableFiltering": True},
        S(
            prompt_tokens=2000,
            labels=(
                {"llm-d.ai/context-length-range": "0-2000"},
                {"llm-d.ai/context-length-range": "2001-4000"},
                {},
            ),
        ),
        [0, 2],
    ),
    # 9/10 and 8/10 are at least 0.8; p2 holds nothing.
    ("prefix-cache-affinity-filter", "sticky", {}, S(blocks=10, matched=(9, 8, 0)), [0, 1]),
    ("prefix-cache-affinity-filter", "none sticky", {}, S(blocks=10, matched=(7, 0, 0)), [0, 1, 2]),
    # p0 would take 20,000 tokens / 1,000 a second = 20 s, p1 and p2 no time: more than 18 s behind.
    (
        "prefix-cache-affinity-filter",
        "too far behind",
        {"peakPrefillThroughput": 1000},
        S(blocks=10, matched=(10, 0, 0), tokens=(20_000, 0, 0)),
        [0, 1, 2],
    ),
    # 18,000 tokens are 18 s: not more than 18 s.
    (
        "prefix-cache-affinity-filter",
        "just near enough",
        {"peakPrefillThroughput": 1000},
        S(blocks=10, matched=(10, 0, 0), tokens=(18_000, 0, 0)),
        [0],
    ),
    # The draw 0.2 is below 0.3: all stay.
    (
        "prefix-cache-affinity-filter",
        "exploring",
        {"explorationProbability": 0.3},
        S(blocks=10, matched=(10, 0, 0), draws=(0.2,)),
        [0, 1, 2],
    ),
    # q = 4+1, 5, 6 and usage 0.5, 0.8, 0.1: p1's usage is above 0.7, p2's queue above 5.
    (
        "utilization-filter",
        "two limits",
        {
            "conditions": [
                {"metric": "waiting-queue", "maxValue": 5},
                {"metric": "kv-cache-utilization", "maxValue": 0.7},
            ]
        },
        S(waiting=(4, 5, 6), unseen=(1, 0, 0), kv_usage=(0.5, 0.8, 0.1)),
        [0],
    ),
    # Queue below 5 and cache below 0.8, metrics at most 200 ms old: p1 is full, p2 stale.
    ("utilization-detector", "full and stale", {}, S(waiting=(4, 5, 0), age=(0.1, 0, 0.3)), [0]),
    # Below 5 * 1.5 = 7.5.
    (
        "utilization-detector",
        "headroom",
        {"headroom": 0.5},
        S(waiting=(7, 8, 0), age=(0, 0, 0)),
        [0, 2],
    ),
    # Below int(3 * 1.4) = 4.
    (
        "concurrency-detector",
        "headroom",
        {"maxConcurrency": 3, "headroom": 0.4},
        S(requests=(3, 4, 0)),
        [0, 2],
    ),
]

REVISIONS_OF_THREE: Sequence[Mapping[str, str]] = ({"rev": "a"}, {"rev": "b"}, {})
KEPT += [
    ("session-affinity-filter", "token", {}, S(headers={"x-session-token": TOKEN_P1}), [1]),
    ("session-affinity-filter", "no token", {}, S(headers={"x-session-token": "%%"}), [0, 1, 2]),
    # 2 < 5 <= 5; unknown passes.
    (
        "endpoint-attribute-filter",
        "threshold",
        {
            "attribute": "cost",
            "algorithm": {"type": "threshold", "threshold": {"operator": "LessThan", "value": 5}},
        },
        S(attributes=(2, 5, NAN)),
        [0, 2],
    ),
    ("topology-affinity-filter", "rack", {"minAffinity": "rack"}, S(labels=PLACES, peer=2), [0, 2]),
    ("topology-affinity-filter", "nothing near", {}, S(labels=PLACES, peer=2), [0, 1, 2]),
]

ROLES = ({}, {"llm-d.ai/role": "encode-decode"}, {"llm-d.ai/role": "both"})
KEPT += [
    # No label answers whole requests, both is prefill-decode.
    ("decode-filter", "roles", {}, S(labels=ROLES), [0, 1, 2]),
    ("decode-filter", "other", {}, S(labels=({"llm-d.ai/role": "prefill"}, {"llm-d.ai/role": "?"}, {})), [2]),
    ("prefill-filter", "roles", {}, S(labels=ROLES), [2]),
    ("encode-filter", "roles", {}, S(labels=ROLES), [1]),
    ("by-label", "values", {"label": "rev", "validValues": ["b"]}, S(labels=REVISIONS_OF_THREE), [1]),
    (
        "by-label",
        "no label",
        {"label": "rev", "validValues": ["b"], "allowsNoLabel": True},
        S(labels=REVISIONS_OF_THREE),
        [1, 2],
    ),
]

KEPT += [
    # TTFT headrooms 0.5, 0, -0.5: p2 misses. The draw 0.5 is above 0.01.
    ("slo-headroom-tier-filter", "meets", {}, S(ttft=(0.5, 1, 1.5), objectives=SLO, draws=(0.5,)), [0, 1]),
    ("slo-headroom-tier-filter", "explores", {}, S(ttft=(0.5, 1, 1.5), objectives=SLO, draws=(0.005,)), [2]),
    ("slo-headroom-tier-filter", "unknown", {}, S(ttft=(0.5, NAN, 1.5), objectives=SLO, draws=(0.5,)), [0]),
    ("slo-headroom-tier-filter", "all miss", {}, S(ttft=(2, 3, 4), objectives=SLO), [0, 1, 2]),
    ("slo-headroom-tier-filter", "nothing predicted", {}, S(objectives=SLO), [0, 1, 2]),
    # The sticky p0 takes 6 s, p1 0.5 s: more than 5 s behind. With 5.4 s it is not.
    (
        "prefix-cache-affinity-filter",
        "predicted too far behind",
        {"ttftSource": "latencyPredictor", "maxTTFTPenaltyMs": 5000},
        S(blocks=10, matched=(10, 0, 0), ttft=(6, 0.5, 9)),
        [0, 1, 2],
    ),
    (
        "prefix-cache-affinity-filter",
        "predicted near enough",
        {"ttftSource": "latencyPredictor", "maxTTFTPenaltyMs": 5000},
        S(blocks=10, matched=(10, 0, 0), ttft=(5.4, 0.5, 9)),
        [0],
    ),
    (
        "prefix-cache-affinity-filter",
        "nothing predicted",
        {"ttftSource": "latencyPredictor", "maxTTFTPenaltyMs": 5000},
        S(blocks=10, matched=(10, 0, 0), tokens=(10**9, 0, 0)),
        [0],
    ),
]

ORDERS: list[tuple[str, str, dict[str, Any], Sequence[float], Sequence[float], list[int]]] = [
    # By score.
    ("max-score-picker", "by score", {}, (0.1, 0.9, 0.5), (0.5, 0.5, 0.5), [1, 2, 0]),
    # p0 and p2 tie; the larger draw is first.
    ("max-score-picker", "tie", {"maxNumOfEndpoints": 2}, (0.9, 0.1, 0.9), (0.2, 0.9, 0.7), [2, 0]),
    # By draw, whatever the scores.
    ("random-picker", "by draw", {"maxNumOfEndpoints": 2}, (1, 1, 0), (0.1, 0.4, 0.9), [2, 1]),
    # Keys log(1 - draw) / score: log(0.5)/1 = -0.693; log(0.9)/0.1 = -1.054; log(0.8)/0.5 = -0.446.
    ("weighted-random-picker", "by key", {}, (1.0, 0.1, 0.5), (0.5, 0.1, 0.2), [2, 0, 1]),
    # All scores are 0: by draw.
    ("weighted-random-picker", "all zero", {"maxNumOfEndpoints": 1}, (0, 0, 0), (0.1, 0.9, 0.5), [1]),
]

SATURATIONS: list[tuple[str, str, dict[str, Any], Situation, float]] = [
    # max(5/5, 0/0.8) = 1, max(0, 0.4/0.8) = 0.5, stale = 1; on average 2.5 / 3.
    (
        "utilization-detector",
        "mean",
        {},
        S(waiting=(5, 0, 0), kv_usage=(0, 0.4, 0), age=(0, 0, 0.3)),
        2.5 / 3,
    ),
    # (50 + 100 + 0) / (3 * 100).
    ("concurrency-detector", "requests", {}, S(requests=(50, 100, 0)), 0.5),
    # max(1/2, 50/100), max(2/2, 0), max(0, 25/100): (0.5 + 1 + 0.25) / 3.
    (
        "concurrency-detector",
        "hybrid",
        {"concurrencyMode": "hybrid", "maxConcurrency": 2, "maxTokenConcurrency": 100},
        S(requests=(1, 2, 0), tokens=(50, 0, 25)),
        1.75 / 3,
    ),
]

REFUSED: list[tuple[str, str, dict[str, Any], Situation, bool]] = [
    # (1/5 + 1/5 + 1/5) / 3 = 0.2; 300 * 0.2^5 = 0.096: a draw of 0.09 is refused, one of 0.1 is not.
    (
        "probabilistic-admitter",
        "below",
        {},
        S(waiting=(1, 1, 1), priority=-1, draws=(0.09,)),
        True,
    ),
    ("probabilistic-admitter", "above", {}, S(waiting=(1, 1, 1), priority=-1, draws=(0.1,)), False),
    ("probabilistic-admitter", "priority 0", {}, S(waiting=(9, 9, 9), draws=(0.0,)), False),
]

BUSY: Any = {"running": (3, 3, 3), "kv_usage": (0.5, 0.5, 0.5), "objectives": SLO}

LATE_REFUSED: list[tuple[str, str, dict[str, Any], Situation, bool]] = [
    # All take more than 1 s.
    ("latency-slo-admitter", "all miss", {}, S(**BUSY, ttft=(2, 3, 4), priority=-1), True),
    ("latency-slo-admitter", "priority 0", {}, S(**BUSY, ttft=(2, 3, 4)), False),
    ("latency-slo-admitter", "one meets", {}, S(**BUSY, ttft=(2, 0.9, 4), priority=-1), False),
    # p1 meets TTFT alone: 0.06 s a token is more than 0.05.
    (
        "latency-slo-admitter",
        "one objective missed",
        {},
        S(**BUSY, ttft=(2, 0.9, 4), tpot=(0.06, 0.06, 0.06), priority=-1),
        True,
    ),
    (
        "latency-slo-admitter",
        "an idle one",
        {},
        S(**{**BUSY, "running": (3, 0, 3)}, ttft=(2, 3, 4), priority=-1),
        False,
    ),
    (
        "latency-slo-admitter",
        "an empty cache",
        {},
        S(**{**BUSY, "kv_usage": (0.5, 0.5, 0.019)}, ttft=(2, 3, 4), priority=-1),
        False,
    ),
    ("latency-slo-admitter", "nothing predicted", {}, S(**BUSY, priority=-1), False),
]

REVISIONS: Sequence[Mapping[str, str]] = (
    {"rev": "a", "role": "x"},
    {"rev": "b", "role": "x"},
    {"rev": "b", "role": "y"},
)

SCREENED: list[tuple[str, str, dict[str, Any], Situation, list[int]]] = [
    # Weights a 1, b 2: 0.33 * 3 = 0.99 is a's share, 0.34 * 3 = 1.02 is b's.
    (
        "disaggregatedset-rollout-screener",
        "a",
        {"revisionGating": {"revisionLabelKey": "rev"}},
        S(labels=REVISIONS, draws=(0.33,)),
        [0],
    ),
    (
        "disaggregatedset-rollout-screener",
        "b",
        {"revisionGating": {"revisionLabelKey": "rev"}},
        S(labels=REVISIONS, draws=(0.34,)),
        [1, 2],
    ),
    # a lacks role y.
    (
        "disaggregatedset-rollout-screener",
        "roles",
        {
            "revisionGating": {
                "revisionLabelKey": "rev",
                "roleLabelKey": "role",
                "requireRoles": {"values": ["x", "y"]},
            }
        },
        S(labels=REVISIONS, draws=(0.0,)),
        [1, 2],
    ),
]


def ids(cases: Sequence[tuple[Any, ...]]) -> list[str]:
    return [f"{case[0]}: {case[1]}" for case in cases]


@pytest.mark.parametrize(("kind", "_", "parameters", "situation", "expected"), SCORES, ids=ids(SCORES))
def test_scores(
    kind: str, _: str, parameters: dict[str, Any], situation: Situation, expected: list[float]
) -> None:
    plugin, pool = made(kind, situation, parameters)
    request, candidates = asked(situation, pool)
    for row in situation.new_prompts:
        nowhere = dataclasses.replace(situation, matched=(0, 0, 0))
        plugin.decided(*asked(nowhere, pool), Reservation(row, pool.table.generation[row], 0))
    assert plugin.score(request, candidates, pool.table).tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("kind", "_", "parameters", "situation", "expected"), KEPT, ids=ids(KEPT))
def test_kept(
    kind: str, _: str, parameters: dict[str, Any], situation: Situation, expected: list[int]
) -> None:
    plugin, pool = made(kind, situation, parameters)
    request, candidates = asked(situation, pool)
    assert plugin.filter(request, candidates, pool.table).tolist() == expected


@pytest.mark.parametrize(("kind", "_", "parameters", "situation", "expected"), SCREENED, ids=ids(SCREENED))
def test_screened(
    kind: str, _: str, parameters: dict[str, Any], situation: Situation, expected: list[int]
) -> None:
    plugin, pool = made(kind, situation, parameters)
    request, candidates = asked(situation, pool)
    assert plugin.screen(request, candidates.rows, pool.table).tolist() == expected


@pytest.mark.parametrize(("kind", "_", "parameters", "scores", "draws", "expected"), ORDERS, ids=ids(ORDERS))
def test_picked(
    kind: str,
    _: str,
    parameters: dict[str, Any],
    scores: Sequence[float],
    draws: Sequence[float],
    expected: list[int],
) -> None:
    plugin, pool = made(kind, S(), parameters)
    _request, candidates = asked(S(), pool)
    order = plugin.pick(candidates, np.array(scores, dtype=np.float64), Draws(*draws))
    assert order.tolist() == expected


@pytest.mark.parametrize(
    ("kind", "_", "parameters", "situation", "expected"), SATURATIONS, ids=ids(SATURATIONS)
)
def test_saturation(
    kind: str, _: str, parameters: dict[str, Any], situation: Situation, expected: float
) -> None:
    plugin, pool = made(kind, situation, parameters)
    assert plugin.saturation(pool.table.ready_rows, pool.table, NOW) == pytest.approx(expected)


@pytest.mark.parametrize(("kind", "_", "parameters", "situation", "expected"), REFUSED, ids=ids(REFUSED))
def test_refused(kind: str, _: str, parameters: dict[str, Any], situation: Situation, expected: bool) -> None:
    plugin, pool = made(kind, situation, parameters)
    request, candidates = asked(situation, pool)
    assert (plugin.refusal(request, candidates.rows, pool.table, NOW) is not None) is expected


@pytest.mark.parametrize(
    ("kind", "_", "parameters", "situation", "expected"), LATE_REFUSED, ids=ids(LATE_REFUSED)
)
def test_refused_after_the_profile(
    kind: str, _: str, parameters: dict[str, Any], situation: Situation, expected: bool
) -> None:
    plugin, pool = made(kind, situation, parameters)
    request, candidates = asked(situation, pool)
    assert (plugin.refusal(request, candidates, pool.table) is not None) is expected


# What has no table: the plugin's part in a decision, or the settings that it carries.


def routed(config: str, headers: Mapping[str, str], link: Link | None = None) -> Decision:
    """Return the decision on a request to three servers; p1 has the shortest queue."""
    router = build_router(config_text=config, clock=lambda: NOW, rng=np.random.default_rng(1))
    assert not router.config_error, router.config_error
    router.replace_endpoints(
        Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000 + n, labels={"tier": "ab"[n // 2]}) for n in range(3)
    )
    router.table.waiting[router.table.ready_rows] = [5, 0, 9]
    if link is not None:
        router.pool.desk.connect(link)
        router.pool.desk.state = State.TRAINED
    answer = router.decide(InferenceRequest(request_id="r", headers=headers), None, lambda _late: None)
    assert isinstance(answer, Decision)
    return answer


def single_profile_handler() -> None:
    # The one profile's order: queues 0, 5 and 9.
    decision = routed("plugins: [{type: single-profile-handler}, {type: queue-scorer}]", {})
    assert decision.destination == "10.0.0.1:8001,10.0.0.0:8000,10.0.0.2:8002"


def header_profile_handler() -> None:
    config = """
plugins:
- {type: header-profile-handler, parameters: {headerName: Kind, defaultProfile: all}}
- {type: queue-scorer}
- {type: label-selector-filter, parameters: {matchLabels: {tier: b}}}
schedulingProfiles:
- {name: all, plugins: [{pluginRef: queue-scorer}]}
- {name: tier-b, plugins: [{pluginRef: label-selector-filter}, {pluginRef: queue-scorer}]}
"""
    # Without the header the shortest queue of all; with it, the only server of tier b.
    assert routed(config, {}).endpoint == "10.0.0.1:8001"
    assert routed(config, {"kind": "tier-b"}).destination == "10.0.0.2:8002"


def data_parallel_profile_handler() -> None:
    # The chosen rank is in the header; the request enters by port 9000 of its address.
    config = """
plugins: [{type: data-parallel-profile-handler, parameters: {primaryPort: 9000}}, {type: queue-scorer}]
"""
    decision = routed(config, {})
    assert decision.destination == "10.0.0.1:9000"
    assert decision.headers == (("x-data-parallel-host-port", "10.0.0.1:8001"),)


def staged(plugins: str, prompt: bytes, **headers: str) -> Decision:
    """Return the decision of a pool with an encode, two prefill and two decode servers; e0 is 10.0.0.0."""
    config = f"""
plugins: [{{type: decode-filter}}, {{type: prefill-filter}}, {{type: queue-scorer}},
  {{type: max-score-picker, parameters: {{maxNumOfEndpoints: 1}}}}, {plugins}]
schedulingProfiles:
- {{name: decode, plugins: [{{pluginRef: decode-filter}}, {{pluginRef: queue-scorer}}]}}
- {{name: prefill, plugins: [{{pluginRef: prefill-filter}}, {{pluginRef: queue-scorer}}]}}
"""
    if "encode: " in plugins:
        config = config.replace("[{type", "[{type: encode-filter}, {type", 1)
        config += "- {name: encode, plugins: [{pluginRef: encode-filter}]}\n"
    router = build_router(config_text=config, clock=lambda: NOW, rng=np.random.default_rng(1))
    assert not router.config_error, router.config_error
    roles = ("encode", "prefill", "prefill", "decode", "decode")
    router.replace_endpoints(
        Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000, labels={"llm-d.ai/role": role})
        for n, role in enumerate(roles)
    )
    # Prefill server 2 and decode server 3 have the shorter queues.
    router.table.waiting[router.table.ready_rows] = [0, 5, 1, 2, 7]
    request = InferenceRequest(request_id="r", prompt=prompt, headers=headers)
    answer = router.decide(request, None, lambda _late: None)
    assert isinstance(answer, Decision)
    return answer


PREFILL_ON_2 = ("x-prefiller-host-port", "10.0.0.2:8000")
PD = "{type: disagg-profile-handler, parameters: {deciders: {prefill: d}}}"


def always_disagg_pd_decider() -> None:
    decision = staged(f"{PD}, {{type: always-disagg-pd-decider, name: d}}", b"")
    assert (decision.destination, decision.headers) == ("10.0.0.3:8000", (PREFILL_ON_2,))


def prefix_based_pd_decider() -> None:
    # 100 tokens are 400 bytes, none cached: 100 >= 100 goes to a prefill server, 99 does not.
    plugins = f"{PD}, {{type: prefix-based-pd-decider, name: d, parameters: {{nonCachedTokens: 100}}}}"
    assert staged(plugins, bytes(400)).headers == (PREFILL_ON_2,)
    assert staged(plugins, bytes(399)).headers == ()


def always_disagg_multimodal_decider() -> None:
    # The prompt material of an image begins with the byte 3, that of other parts with 4.
    plugins = (
        "{type: disagg-profile-handler, parameters: {deciders: {encode: m, prefill: d}}}, "
        "{type: always-disagg-multimodal-decider, name: m}, {type: always-disagg-pd-decider, name: d}"
    )
    encode = ("x-encoder-hosts-ports", "10.0.0.0:8000")
    assert staged(plugins, b"\x03image").headers == (encode, PREFILL_ON_2)
    assert staged(plugins, b"\x04file").headers == (PREFILL_ON_2,)


def disagg_profile_handler() -> None:
    # 300 tokens: the prefill server has them until the first byte, the decode server until the end.
    plugins = "{type: disagg-profile-handler, parameters: {stageOrder: prefill-first}}"
    decision = staged(plugins, bytes(1200))
    assert (decision.destination, decision.headers) == ("10.0.0.3:8000", (PREFILL_ON_2,))
    held = [(each.profile, each.row, each.tokens, each.decode_tokens) for each in decision.reservations]
    assert held == [("decode", 3, 0, 300), ("prefill", 2, 300, 0)]


def pd_profile_handler() -> None:
    plugins = (
        "{type: pd-profile-handler, parameters: {deciderPluginName: d, primaryPort: 9000}}, "
        "{type: always-disagg-pd-decider, name: d}"
    )
    decision = staged(plugins, b"")
    assert decision.destination == "10.0.0.3:9000"
    assert decision.headers == (("x-data-parallel-host-port", "10.0.0.3:8000"), PREFILL_ON_2)


def header_writer(kind: str) -> Callable[[], None]:
    def check() -> None:
        # The profile handler writes the header once, with or without the old plugin.
        plugins = f"{PD}, {{type: always-disagg-pd-decider, name: d}}, {{type: {kind}}}"
        assert staged(plugins, b"").headers == (PREFILL_ON_2,)

    return check


def approx_prefix_cache_producer() -> None:
    # 300 tokens in blocks of 64 are 4 full blocks. After the decision for p1 it holds all 4; a prompt that
    # differs from token 150 on shares 2 blocks (128 tokens).
    plugin, pool = made("approx-prefix-cache-producer", S(), {"autoTune": False})
    request, candidates = asked(S(prompt_tokens=300), pool)
    plugin.produce(request, candidates, pool.table)
    assert (candidates.prompt_blocks, candidates.block_tokens) == (4, 64)
    assert candidates.prefix_matched.tolist() == [0, 0, 0]
    plugin.decided(request, candidates, Reservation(1, pool.table.generation[1], 0))
    other = InferenceRequest(request_id="s", model="m", prompt=b"p" * 600 + b"q" * 600)
    for prompt, matched in ((request, 4), (other, 2)):
        _request, fresh = asked(S(), pool)
        plugin.produce(prompt, fresh, pool.table)
        assert fresh.prefix_matched.tolist() == [0, matched, 0]


def events_of(pool: Pool, row: int, blocks: int) -> None:
    """Have the row's server announce the first blocks of 16 of the prompt 0, 1, 2, ...; others nothing."""
    pool.kv_sources.use(pool.kv_plan)
    hashes = list(range(blocks))
    stored = ["BlockStored", hashes, None, list(range(16 * blocks)), 16, None, "GPU", None]
    for source in pool.kv_sources:
        events = [stored] if source.row == row else []
        source.received(b"kv@s@m", bytes(8), msgspec.msgpack.encode([1.0, events, 0]), NOW)


def precise(kind: str) -> Callable[[], None]:
    def check() -> None:
        # 100 tokens are 6 blocks of 16; p1 has announced the first 4. p0 was sent the same prompt before,
        # which only the approximate index knows: 400 bytes are one block of 64 "tokens".
        plugin, pool = made(kind, S(), {})
        request, candidates = asked(S(prompt_tokens=100), pool)
        plugin.produce(request, candidates, pool.table)
        assert candidates.prefix_source == "approximate: no tokens (none)"
        plugin.decided(request, candidates, Reservation(0, 0, 0))
        request.tokens = Tokens(array("I", range(100)).tobytes(), "prompt")
        _request, candidates = asked(S(), pool)
        plugin.produce(request, candidates, pool.table)
        assert candidates.prefix_source == "approximate: no events"
        assert candidates.prefix_matched.tolist() == [1, 0, 0]
        events_of(pool, 1, 4)
        _request, candidates = asked(S(), pool)
        plugin.produce(request, candidates, pool.table)
        assert (candidates.prefix_source, candidates.prompt_blocks, candidates.block_tokens) == (
            "precise",
            6,
            16,
        )
        assert candidates.prefix_matched.tolist() == [0, 4, 0]
        if kind.endswith("scorer"):
            assert plugin.score(request, candidates, pool.table) == pytest.approx([0, 4 / 6, 0])
        # p0 is silent after a prompt whose blocks it should have announced: the approximate index answers for
        # it, with all of its one block, so all 6.
        pool.kv.expect(0, NOW - 6)
        _request, candidates = asked(S(), pool)
        plugin.produce(request, candidates, pool.table)
        assert candidates.prefix_source == "mixed"
        assert candidates.prefix_matched.tolist() == [6, 4, 0]

    return check


def token_producer() -> None:
    # A prompt of ids is its own tokens.
    plugin, pool = made("token-producer", S(headers={":path": "/v1/completions"}), {})
    pool.tokenizing.use(pool.token_plan)
    request, candidates = asked(S(headers={":path": "/v1/completions"}), pool)
    request.chunks = (b'{"model": "m", "prompt": [7, 8, 9], "cache_salt": "s"}',)
    assert plugin.produce(request, candidates, pool.table) is None
    assert (request.tokens.ids, request.tokens.salt) == (array("I", [7, 8, 9]).tobytes(), "s")
    # A text waits for the budget of 50 ms.
    request, candidates = asked(S(headers={":path": "/v1/completions"}), pool)
    request.chunks = (b'{"model": "m", "prompt": "text"}',)
    hold = plugin.produce(request, candidates, pool.table)
    assert hold is not None
    assert plugin.advance(NOW) == ([], pytest.approx(NOW + 0.05))
    assert plugin.advance(NOW + 0.05) == ([hold], None)
    assert (request.tokens.ids, request.tokens.reason) == (b"", "budget")


def mm_embeddings_cache(kind: str) -> Callable[[], None]:
    def check() -> None:
        # Of two images p2 has encoded the first: a half; all weigh the same while their tokens are not known.
        producer, pool = made("mm-embeddings-cache-producer", S(), {})
        scorer = made("mm-embeddings-cache-scorer", S(), {})[0]
        request, candidates = asked(S(), pool)
        request.chunks = (_chat("http://i/1"),)
        producer.decided(request, candidates, Reservation(2, 0, 0))
        request.chunks = (_chat("http://i/1", "http://i/2"),)
        producer.produce(request, candidates, pool.table)
        assert scorer.score(request, candidates, pool.table).tolist() == [0, 0, 0.5]
        # With 300 and 100 tokens it has three quarters.
        request.tokens = Tokens(b"", "server", media=((0, 300, "a"), (300, 100, "b")))
        producer.produce(request, candidates, pool.table)
        assert scorer.score(request, candidates, pool.table).tolist() == [0, 0, 0.75]
        assert kind

    return check


def _chat(*images: str) -> bytes:
    parts = [{"type": "image_url", "image_url": {"url": each}} for each in images]
    return json.dumps({"messages": [{"role": "user", "content": parts}]}).encode()


def endpoint_notification_source() -> None:
    # What names it as a source is followed anyway: the configuration is as without it.
    text = json.dumps(
        {
            "plugins": [
                {"type": "endpoint-notification-source"},
                {"type": "precise-prefix-cache-producer"},
                {"type": "prefix-cache-scorer"},
            ],
            "dataLayer": {
                "sources": [
                    {
                        "pluginRef": "endpoint-notification-source",
                        "extractors": [{"pluginRef": "precise-prefix-cache-producer"}],
                    }
                ]
            },
        }
    )
    config = build(text, REGISTRY)
    assert config.scrape is not None
    assert any("endpoint-notification-source" in each for each in config.warnings)


def destination_endpoint_served_verifier() -> None:
    plugin, _pool = made("destination-endpoint-served-verifier", S(), {})
    record = Record(0.0)
    record.served_by = "10.0.0.1:3000"
    decision = Decision(destination="", endpoint="", reservations=())
    header = ("x-conformance-test-served-endpoint", "10.0.0.1:3000")
    assert list(plugin.response_headers(decision, record)) == [header]


def request_attribute_reporter() -> None:
    # (10 - 4) uncached prompt tokens + 3 * 20 of the completion = 66.
    expression = (
        "usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens + 3 * usage.completion_tokens"
    )
    attribute = {"key": {"name": "cost"}, "expression": expression}
    plugin, _pool = made("request-attribute-reporter", S(), {"attributes": [attribute]})
    record = Record(0.0)
    record.usage = Usage(10, 20, 4)
    decision = Decision(destination="", endpoint="", reservations=())
    assert list(plugin.response_complete(decision, record)) == [("envoy.lb", "cost", 66.0)]


def metrics_data_source() -> None:
    plan = build("plugins: [{type: metrics-data-source, parameters: {port: 8002}}]", REGISTRY).scrape
    assert plan is not None
    assert (plan.path, plan.port, plan.uses_tls) == ("/metrics", 8002, False)


def core_metrics_extractor() -> None:
    # Two engines behind one port: 3 + 1 wait, 2 + 0 run, usage is the mean of 0.2 and 0.6; 100 blocks of 16
    # and 100 of 16 are 200 blocks.
    page = b"""#
vllm:num_requests_waiting{engine="0"} 3
vllm:num_requests_waiting{engine="1"} 1
vllm:num_requests_running{engine="0"} 2
vllm:num_requests_running{engine="1"} 0
vllm:kv_cache_usage_perc{engine="0"} 0.2
vllm:kv_cache_usage_perc{engine="1"} 0.6
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="100"} 1
"""
    plan = build("plugins: [{type: core-metrics-extractor}]", REGISTRY).scrape
    assert plan is not None
    engine = engine_of({}, plan.engine_label_key, plan.default_engine, plan.engines)
    reading = PageReader(engine).read(page)
    assert (reading.waiting, reading.running) == (4.0, 2.0)
    assert reading.kv_usage == pytest.approx(0.4)
    assert (reading.block_size, reading.num_blocks) == (16, 200)


def reads(
    kind: str, parameters: dict[str, Any], headers: Mapping[str, str], expected: dict[str, str]
) -> Callable[[], None]:
    def check() -> None:
        plugin, pool = made(kind, S(), parameters)
        request, _candidates = asked(S(headers=headers), pool)
        plugin.read(request)
        assert request.attributes == expected

    return check


def response_state_producer() -> None:
    plugin, pool = made("response-state-producer", S(), {})
    request, _candidates = asked(S(), pool)
    plugin.read(request)
    assert request.attributes == {}
    request.state = "resp_1"
    plugin.read(request)
    assert request.attributes == {"ResponseState": "resp_1"}


def topology_extractor() -> None:
    plugin, _pool = made("topology-extractor", S(), {})
    assert plugin.place_of(Endpoint("p", "ns", "10.0.0.1", 80, labels=PLACES[0])) == ("", "r", "z", "")


def inflight_load_producer() -> None:
    # 400 bytes are 100 tokens. round(100 * 1.5) = 150 more, of which 130 are allowed: 230 in flight until the
    # first byte, 130 until the end.
    config = """
plugins:
- {type: inflight-load-producer, parameters: {addEstimatedOutputTokens: true, maxEstimatedOutputTokens: 130}}
- {type: queue-scorer}
"""
    router = build_router(config_text=config, clock=lambda: NOW, rng=np.random.default_rng(1))
    assert not router.config_error, router.config_error
    router.replace_endpoints([Endpoint("p0", "default", "10.0.0.0", 8000)])
    (row,) = router.table.ready_rows.tolist()
    request = InferenceRequest(request_id="r", prompt=b"p" * 400, body_bytes=400)
    answer = router.decide(request, None, lambda _late: None)
    assert isinstance(answer, Decision)
    assert router.table.inflight_tokens[row] == 230
    router.first_byte(answer, Record(0.0))
    assert router.table.inflight_tokens[row] == 130
    router.ended(answer, Record(0.0))
    assert router.table.inflight_tokens[row] == 0


def dcgm_data_source() -> None:
    text = "plugins: [{type: dcgm-data-source}]\ndataLayer: {sources: [{pluginRef: dcgm-data-source}]}"
    plan = build(text, REGISTRY).exporter
    assert plan is not None
    assert (plan.path, plan.port, plan.interval, plan.at_node) == ("/metrics", 9400, 1.0, False)


def dcgm_extractor() -> None:
    # The busier of two GPUs: 87 % is 0.87.
    page = b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 12\nDCGM_FI_DEV_GPU_UTIL{gpu="1"} 87\n'
    text = "plugins: [{type: dcgm-data-source}]\ndataLayer: {sources: [{pluginRef: dcgm-data-source}]}"
    plan = build(text, REGISTRY).exporter
    assert plan is not None
    ((key, value),) = plan.reader({}).read(page).attributes
    assert key == ("dcgm-extractor", "GPUUtilization")
    assert value == pytest.approx(0.87)


def parser(kind: str, known: set[str], others: bool) -> Callable[[], None]:
    def check() -> None:
        text = json.dumps({"plugins": [{"type": kind}], "requestHandler": {"parsers": [{"pluginRef": kind}]}})
        reading = build(text, REGISTRY).reading
        assert (set(reading.parsers), reading.others) == (known, others)

    return check


def queued(tenant: str, at: float, sequence: int, slo_ms: str = "") -> Queued:
    headers = {"x-slo-ttft-ms": slo_ms} if slo_ms else {}
    request = InferenceRequest(request_id=f"{tenant}{sequence}", headers=headers)
    made = Queued(request, None, lambda _answer: None, lambda _queued: None, tenant, 0, at)
    made.sequence = sequence
    return made


def ordered(kind: str, expected: list[int]) -> Callable[[], None]:
    """Three requests: of 1 at 0 s with 900 ms, of 2 at 0.5 s with 100 ms, of 3 at 0.6 s without."""

    def check() -> None:
        policy = REGISTRY.find(kind, "")({})
        assert isinstance(policy, OrderingPolicy)
        flow = Flow("t", 0)
        for number, (at, slo) in enumerate([(0.0, "900"), (0.5, "100"), (0.6, "")], start=1):
            each = queued("t", at, number, slo)
            flow.push(policy.key(each, 10.0 if number > 1 else 10.9), each)
        assert [flow.pop().sequence for _ in range(3)] == expected

    return check


def fairness(
    kind: str, parameters: dict[str, Any], served: list[tuple[str, float]], expected: str
) -> Callable[[], None]:
    """Flow a has requests from 0 s on, b from 1 s, c from 2 s; `served` is charged at 3 s, then five turns
    at 3 s of 100 tokens each."""

    def check() -> None:
        kind_of = REGISTRY.find(kind, "")
        policy = kind_of(kind_of.params_type.model_validate(parameters))
        assert isinstance(policy, FairnessPolicy)
        lanes = policy.lanes()
        flows = {name: Flow(name, 0) for name in "abc"}
        for number, flow in enumerate(flows.values()):
            for n in range(6):
                flow.push(0.0, queued(flow.id, float(number), 10 * number + n))
            lanes.activate(flow, 3.0)
        for name, tokens in served:
            lanes.served(flows[name], tokens, 3.0)
        order = ""
        for _ in range(5):
            flow = lanes.select(3.0) or flows["a"]
            order += flow.id
            flow.pop()
            lanes.turned(flow)
            lanes.changed(flow)
            lanes.served(flow, 100.0, 3.0)
        assert order == expected

    return check


def ceilings(
    kind: str, parameters: dict[str, Any], saturation: float, expected: list[list[float]]
) -> Callable[[], None]:
    """Bands 20, 10 and -20, in as many calls as there are expected answers."""

    def check() -> None:
        kind_of = REGISTRY.find(kind, "")
        policy = kind_of(kind_of.params_type.model_validate(parameters))
        assert isinstance(policy, UsageLimitPolicy)
        for each in expected:
            assert list(policy.ceilings([20, 10, -20], saturation)) == pytest.approx(each)

    return check


class Oracle:
    """A prediction server that answers at once: a median of 0.1 s for each waiting request, twice that as the
    bound, and a token every 20 or 40 ms."""

    servers = 1
    answers_at_once = True

    def __init__(self) -> None:
        self.asked: list[PredictionRequest] = []

    def send(
        self, server: int, message: bytes, timeout_s: float, answered: Callable[[bytes | None], None]
    ) -> None:
        asked = decode_request(message)
        self.asked.append(asked)
        waiting = asked.matrix[:, COLUMN["waiting_requests"]]
        first = np.stack([0.1 * waiting, 0.2 * waiting])
        tokens = np.broadcast_to(np.array([[0.02], [0.04]]), first.shape)
        both = np.stack([first, tokens])[: len(asked.targets)].astype(np.float32)
        trusted = np.zeros(len(waiting), dtype=np.uint8)
        answered(encode_answer(ServerAnswer(State.TRAINED, "v", asked.targets, trusted, both)))


def predicted_latency_producer() -> None:
    # Queues of 1, 2 and 5: 0.1, 0.2 and 0.5 s; bounds 0.2, 0.4 and 1. TTFT objective 0.45 s: headrooms 0.25,
    # 0.05 and -0.55. TPOT 0.05 - 0.04 = 0.01 everywhere.
    situation = S(waiting=(1, 2, 5), headers={"x-slo-ttft-ms": "450", "x-llm-d-slo-tpot-ms": "50"})
    plugin, pool = made("predicted-latency-producer", situation, {"mode": "All", "streamingMode": True})
    request, candidates = asked(situation, pool)
    plugin.produce(request, candidates, pool.table)
    assert candidates.prediction.reason == "no-server"
    pool.desk.connect(Oracle())
    pool.desk.state = State.TRAINED
    candidates.prediction = None
    assert plugin.produce(request, candidates, pool.table) is None
    prediction = candidates.prediction
    assert prediction.first.tolist() == pytest.approx([0.1, 0.2, 0.5])
    assert prediction.first_headroom.tolist() == pytest.approx([0.25, 0.05, -0.55])
    assert prediction.tpot_headroom.tolist() == pytest.approx([0.01, 0.01, 0.01])


def prediction_profile_handler() -> None:
    # The predicted profile has the queue scorer: p1. The heuristic one, without a server, picks by label: p2.
    config = """
plugins:
- {type: prediction-profile-handler, parameters: {heuristicProfile: tier-b}}
- {type: predicted-latency-producer, parameters: {mode: All, holdoutPercent: 0}}
- {type: latency-scorer}
- {type: queue-scorer}
- {type: label-selector-filter, parameters: {matchLabels: {tier: b}}}
schedulingProfiles:
- {name: predicted, plugins: [{pluginRef: latency-scorer}]}
- {name: tier-b, plugins: [{pluginRef: label-selector-filter}, {pluginRef: queue-scorer}]}
"""
    assert routed(config, {}).endpoint == "10.0.0.2:8002"
    # With one, the shortest predicted time wins: queue 0 of p1.
    assert routed(config, {}, Oracle()).endpoint == "10.0.0.1:8001"


OTHERS: dict[str, Callable[[], None]] = {
    "single-profile-handler": single_profile_handler,
    "header-profile-handler": header_profile_handler,
    "data-parallel-profile-handler": data_parallel_profile_handler,
    "always-disagg-pd-decider": always_disagg_pd_decider,
    "always-disagg-multimodal-decider": always_disagg_multimodal_decider,
    "prefix-based-pd-decider": prefix_based_pd_decider,
    "disagg-profile-handler": disagg_profile_handler,
    "pd-profile-handler": pd_profile_handler,
    "disagg-headers-handler": header_writer("disagg-headers-handler"),
    "prefill-header-handler": header_writer("prefill-header-handler"),
    "approx-prefix-cache-producer": approx_prefix_cache_producer,
    "precise-prefix-cache-producer": precise("precise-prefix-cache-producer"),
    "precise-prefix-cache-scorer": precise("precise-prefix-cache-scorer"),
    "token-producer": token_producer,
    "mm-embeddings-cache-producer": mm_embeddings_cache("producer"),
    "mm-embeddings-cache-scorer": mm_embeddings_cache("scorer"),
    "endpoint-notification-source": endpoint_notification_source,
    "predicted-latency-producer": predicted_latency_producer,
    "prediction-profile-handler": prediction_profile_handler,
    "destination-endpoint-served-verifier": destination_endpoint_served_verifier,
    "request-attribute-reporter": request_attribute_reporter,
    "metrics-data-source": metrics_data_source,
    "core-metrics-extractor": core_metrics_extractor,
    "agent-identity": reads(
        "agent-identity", {}, {"session-id": "b", "x-session-affinity": "a"}, {"agent-identity": "a"}
    ),
    "session-id-producer": reads(
        "session-id-producer", {"cookieName": "sid"}, {"cookie": "x=1; sid=s7"}, {"SessionID": "s7"}
    ),
    "response-state-producer": response_state_producer,
    "topology-extractor": topology_extractor,
    "inflight-load-producer": inflight_load_producer,
    "dcgm-data-source": dcgm_data_source,
    "dcgm-extractor": dcgm_extractor,
    "fcfs-ordering-policy": ordered("fcfs-ordering-policy", [1, 2, 3]),
    # The waits end at 10.9, 10.5 and 10.6 s.
    "edf-ordering-policy": ordered("edf-ordering-policy", [2, 3, 1]),
    # Due at 0.9 s, 0.6 s and never.
    "slo-deadline-ordering-policy": ordered("slo-deadline-ordering-policy", [2, 1, 3]),
    # All of a arrived before b.
    "global-strict-fairness-policy": fairness("global-strict-fairness-policy", {}, [], "aaaaa"),
    "round-robin-fairness-policy": fairness("round-robin-fairness-policy", {}, [], "abcab"),
    # a has twice the weight. Counters a 50, b 100, c 250; a turn adds 50 to a and 100 to b: a 100, a 150
    # (equal ones go by name), b 200, a 200, a.
    "token-fairness-policy": fairness(
        "token-fairness-policy", {"weights": {"a": 2}}, [("a", 100), ("b", 100), ("c", 250)], "aabaa"
    ),
    # Service a 0, b 100, c 200; waits 3, 2, 1 s. Scores: a 0.8 + 0.2, b 0.4 + 0.1, c 0: a. With a at 100: a
    # 0.8 + 0.2, b 0.8 + 0.1, c 0: a. With a at 200: a 0.2, b 0.8 + 0.1: b. All at 200: by the wait, a.
    # With a at 300: a 0.2, b 0.8 + 0.1, c 0.8: b.
    "program-aware-fairness": fairness("program-aware-fairness", {}, [("b", 100), ("c", 200)], "aabab"),
    "static-usage-limit-policy": ceilings(
        "static-usage-limit-policy", {"threshold": 0.9}, 0.5, [[0.9, 0.9, 0.9]]
    ),
    # Value: 10 lies a quarter of the way from 20 down to -20, so a quarter of the way from 1.0 to 0.6.
    "priority-holdback-policy": ceilings(
        "priority-holdback-policy", {"minCeiling": 0.6, "domain": "value"}, 0.5, [[1.0, 0.9, 0.6]]
    ),
    # Limits 1, 1 - 0.75/2 = 0.625 and 0.25, both below 0.75: open in one call of round(0.75 / 0.25) = 3.
    "soft-reflective-ceiling-policy": ceilings(
        "soft-reflective-ceiling-policy", {}, 0.75, [[1, 0, 0], [1, 0, 0], [1, 1, 1], [1, 0, 0]]
    ),
    "openai-parser": parser("openai-parser", {"openai-parser"}, True),
    **{
        kind: parser(kind, {kind}, False)
        for kind in (
            "anthropic-parser",
            "sglanghttp-parser",
            "vertexai-parser",
            "vllmgrpc-parser",
            "vllmhttp-parser",
        )
    },
    "passthrough-parser": parser("passthrough-parser", set(), False),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_others(kind: str) -> None:
    OTHERS[kind]()


@pytest.mark.parametrize("kind", REGISTRY.types)
def test_every_plugin_has_a_case(kind: str) -> None:
    tables: list[Sequence[tuple[Any, ...]]] = [
        SCORES,
        KEPT,
        ORDERS,
        SATURATIONS,
        REFUSED,
        LATE_REFUSED,
        SCREENED,
    ]
    assert kind in OTHERS or any(case[0] == kind for table in tables for case in table), (
        f"add a case of {kind!r} to {__file__}, worked out by hand"
    )
