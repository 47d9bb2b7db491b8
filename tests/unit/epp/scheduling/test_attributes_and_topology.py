"""endpoint-attribute and topology plugins: hand-computed tables, and what their configurations need."""

from typing import Any

import numpy as np
import pytest

from endpoint_picker.config.build import build
from endpoint_picker.config.registry import Registry
from endpoint_picker.config_errors import ConfigError
from endpoint_picker.datalayer.table import Endpoint, EndpointTable
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import NO_PEER, Candidates
from endpoint_picker.scheduling.filters.endpoint_attribute import (
    AttributeFilterParams,
    EndpointAttributeFilter,
)
from endpoint_picker.scheduling.filters.topology_affinity import TopologyAffinityFilter, TopologyFilterParams
from endpoint_picker.scheduling.scorers.endpoint_attribute import (
    AttributeScorerParams,
    EndpointAttributeScorer,
)
from endpoint_picker.scheduling.scorers.topology_affinity import TopologyAffinityScorer
from endpoint_picker.scheduling.topology import TopologyAffinityParams

REGISTRY = Registry.installed()
REQUEST = InferenceRequest(request_id="r")
NAN = np.nan
ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"


def table_with(values: list[float]) -> EndpointTable:
    table = EndpointTable()
    table.replace(Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000) for n in range(len(values)))
    for row, value in zip(table.ready_rows.tolist(), values, strict=True):
        if not np.isnan(value):
            table.attributes.write(row, ("core-metrics-extractor", "cost"), value, at=0.0)
    return table


@pytest.mark.parametrize(
    ("operator", "more", "expected"),
    [
        ("LessThan", {}, [0, 3]),
        ("LessThanOrEqual", {}, [0, 1, 3]),
        ("GreaterThan", {}, [2, 3]),
        ("GreaterThanOrEqual", {}, [1, 2, 3]),
        ("Equal", {}, [1, 3]),
        ("NotEqual", {}, [0, 2, 3]),
        ("Equal", {"onMissing": "Fail"}, [1]),
    ],
)
def test_the_attribute_filter_keeps_what_meets_the_comparison(
    operator: str, more: dict[str, Any], expected: list[int]
) -> None:
    table = table_with([1.0, 2.0, 3.0, NAN])
    algorithm = {"type": "threshold", "threshold": {"operator": operator, "value": 2}}
    params = AttributeFilterParams.model_validate({"attribute": "cost", "algorithm": algorithm, **more})
    kept = EndpointAttributeFilter(params).filter(REQUEST, Candidates(table.ready_rows), table)
    assert kept.tolist() == expected


def test_where_none_stays_the_filter_leaves_none_or_all() -> None:
    table = table_with([1.0, 2.0])
    algorithm = {"type": "threshold", "threshold": {"operator": "LessThan", "value": 0}}
    for fallback, expected in ((False, []), (True, [0, 1])):
        params = AttributeFilterParams.model_validate(
            {"attribute": "cost", "algorithm": algorithm, "fallbackOnEmpty": fallback}
        )
        kept = EndpointAttributeFilter(params).filter(REQUEST, Candidates(table.ready_rows), table)
        assert kept.tolist() == expected


@pytest.mark.parametrize(
    ("way", "normalization", "values", "expected"),
    [
        ("lower", {}, [1, 2, 5, NAN], [1, 0.75, 0, 0]),
        ("higher", {"adaptiveRange": {}}, [1, 2, 5, NAN], [0, 0.25, 1, 0]),
        ("lower", {}, [3, 3], [1, 1]),
        ("higher", {}, [NAN, NAN], [0, 0]),
        ("higher", {"fixedRange": {"min": -10, "max": 10}}, [-20, -5, 10, 99], [0, 0.25, 1, 1]),
        ("lower", {"fixedRange": {"min": 0, "max": 4}}, [1, NAN], [0.75, 0]),
    ],
)
def test_the_attribute_scorer_places_the_value_in_the_range(
    way: str, normalization: dict[str, Any], values: list[float], expected: list[float]
) -> None:
    table = table_with(values)
    algorithm = {"type": f"linear_{way}_is_better", "normalization": normalization}
    params = AttributeScorerParams.model_validate({"attributeKey": "cost", "algorithm": algorithm})
    scores = EndpointAttributeScorer(params).score(REQUEST, Candidates(table.ready_rows), table)
    assert scores.tolist() == expected


SCORER = (
    "{type: endpoint-attribute-scorer, "
    "parameters: {attributeKey: Cost, algorithm: {type: linear_lower_is_better}"
)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            f"plugins: [{SCORER}}}}}]",
            '"core-metrics-extractor" writes no attribute "Cost"; it writes none',
        ),
        (f"plugins: [{SCORER}, producer: mine}}}}]", 'producer "mine" is no plugin of this configuration'),
        (
            f"plugins: [{SCORER}, normalization: {{}}}}}}]",
            "normalization",
        ),
        (
            "plugins: [{type: topology-affinity-scorer}]",
            "no profile handler of this configuration chooses a peer",
        ),
    ],
)
def test_a_reference_to_what_is_not_there_is_refused(text: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=r"plugins\[0\]\.parameters") as caught:
        build(text, REGISTRY)
    assert fault in str(caught.value)


def test_a_custom_metric_can_be_scored() -> None:
    extractor = (
        "{type: core-metrics-extractor, parameters: {engineConfigs: [{name: vllm, queuedRequestsSpec: q, "
        "customMetrics: [{attributeKey: Cost, metricSpec: cost}]}]}}"
    )
    assert not build(f"plugins: [{SCORER}}}}}, {extractor}]", REGISTRY).warnings


def test_the_hit_rate_can_be_referred_to_only_where_it_is_read() -> None:
    scorer = SCORER.replace("Cost", "KVCacheHitRate") + "}}"
    with pytest.raises(ConfigError, match='writes no attribute "KVCacheHitRate"'):
        build(f"plugins: [{scorer}]", REGISTRY)
    extractor = "{type: core-metrics-extractor, parameters: {cacheHitRate: true}}"
    assert not build(f"plugins: [{scorer}, {extractor}]", REGISTRY).warnings


def servers() -> EndpointTable:
    """The peer, then endpoints on its node, in its rack, zone and region, elsewhere, and nowhere known."""
    places = [
        ("n0", "r0", "z0", "e0"),
        ("n0", "", "", ""),
        ("n1", "r0", "z0", "e0"),
        ("n2", "r1", "z0", "e0"),
        ("n3", "r2", "z1", "e0"),
        ("n4", "r3", "z2", "e1"),
        ("", "", "", ""),
    ]
    table = EndpointTable()
    table.replace(
        Endpoint(
            f"p{n}",
            "default",
            f"10.0.0.{n}",
            8000,
            labels={"topology.kubernetes.io/rack": rack, ZONE: zone, REGION: region},
            node=node,
        )
        for n, (node, rack, zone, region) in enumerate(places)
    )
    return table


def with_peer(table: EndpointTable, peer: int) -> Candidates:
    candidates = Candidates(table.ready_rows)
    candidates.peer = peer
    return candidates


def test_the_nearer_to_the_peer_the_higher_the_score() -> None:
    table, scorer = servers(), TopologyAffinityScorer(TopologyAffinityParams())
    assert scorer.score(REQUEST, with_peer(table, 0), table).tolist() == [1, 1, 0.2, 0.05, 0.02, 0, 0]
    assert not scorer.score(REQUEST, with_peer(table, NO_PEER), table).any()
    assert not scorer.score(REQUEST, with_peer(table, 6), table).any(), "nowhere is near nowhere"


@pytest.mark.parametrize(
    ("least", "expected"),
    [("host", [0, 1]), ("rack", [0, 1, 2]), ("zone", [0, 1, 2, 3]), ("region", [0, 1, 2, 3, 4])],
)
def test_the_filter_keeps_what_is_near_enough(least: str, expected: list[int]) -> None:
    table = servers()
    keep = TopologyAffinityFilter(TopologyFilterParams.model_validate({"minAffinity": least}))
    assert keep.filter(REQUEST, with_peer(table, 0), table).tolist() == expected
    assert keep.filter(REQUEST, with_peer(table, NO_PEER), table).size == 7
    far = Candidates(table.ready_rows[5:])
    far.peer = 0
    assert keep.filter(REQUEST, far, table).tolist() == [5, 6], "none is near: all stay"


def test_places_follow_the_table() -> None:
    table, scorer = servers(), TopologyAffinityScorer(TopologyAffinityParams())
    assert scorer.score(REQUEST, with_peer(table, 0), table)[1] == 1
    table.replace(Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000, node=f"n{n}") for n in range(2))
    assert scorer.score(REQUEST, with_peer(table, 0), table).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("values", "fixed", "expected"),
    [
        ([1e308, -1e308, 0.0], None, [1.0, 0.0, 0.5]),
        ([1e308, -1e308, 0.0], {"min": -1e308, "max": 1e308}, [1.0, 0.0, 0.5]),
        ([1e308, -1e308, 1.0], {"min": 0, "max": 2}, [1.0, 0.0, 0.5]),
    ],
)
def test_huge_attributes_of_a_server_leave_every_score_a_number(
    values: list[float], fixed: dict[str, float] | None, expected: list[float]
) -> None:
    table = table_with(values)
    normalization = {} if fixed is None else {"fixedRange": fixed}
    algorithm = {"type": "linear_higher_is_better", "normalization": normalization}
    params = AttributeScorerParams.model_validate({"attributeKey": "cost", "algorithm": algorithm})
    with np.errstate(all="raise", under="ignore"):
        scores = EndpointAttributeScorer(params).score(REQUEST, Candidates(table.ready_rows), table)
    assert scores.tolist() == pytest.approx(expected)
