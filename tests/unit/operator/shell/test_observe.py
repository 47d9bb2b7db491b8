"""The reader against a recording API: what it takes from caches, what it asks, odd objects."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from inference_operator.core.cache import Cache
from inference_operator.core.desired.plan import desired
from inference_operator.core.kinds import (
    CHILD_KINDS,
    CONFIG_MAP,
    DEPLOYMENT,
    PICKER,
    POOL,
    ROLE_BINDING,
    SERVICE,
    Kind,
)
from inference_operator.core.observation import Access, Denied, Observation
from inference_operator.core.ownership import judge
from inference_operator.shell.api import Api
from inference_operator.shell.observe import Reader
from inference_operator.shell.pods import PodWatches
from inference_operator.shell.supervision import Supervisor
from observations import FULL_ACCESS, SETTINGS, as_live, observation, pool_body
from recording_connection import RecordingConnection

Object = dict[str, Any]
KEY = ("ns", "llm")


class Bench:
    """A reader over caches that hold one running pool."""

    def __init__(self, access: Access = FULL_ACCESS, pool: Object | None = None) -> None:
        self.connection = RecordingConnection()
        self.cache = Cache()
        self.now = 100.0
        api = Api(self.connection)
        watches = PodWatches(api, lambda _: None, Supervisor(time.monotonic))
        self.reader = Reader(api, self.cache, watches, SETTINGS, clock=lambda: self.now)
        self.reader.access = access
        self.cache.synced |= {POOL, PICKER, *CHILD_KINDS, *([access.objectives] if access.objectives else [])}
        self.put(POOL, pool_body() if pool is None else pool)
        self.connection.objects["/api/v1/namespaces/ns/pods"] = {"items": []}

    def put(self, kind: Kind, body: Object) -> None:
        self.cache.put(
            kind, {**body, "metadata": {"namespace": "ns", "resourceVersion": "1", **body["metadata"]}}
        )

    def run(self) -> None:
        """Hold the children of the pool as if all had been made."""
        seen = observation()
        for intent in desired(seen, judge(seen)):
            self.put(intent.kind, as_live(intent.kind, intent.body))

    def observe(self) -> Observation:
        return asyncio.run(self.reader.observe(KEY))


def stray(**metadata: Any) -> Object:
    """Return a ConfigMap with the label of Headroom that no plan names."""
    labels = {"app.kubernetes.io/managed-by": "headroom"}
    return {"metadata": {"name": "old-config", "labels": labels, **metadata}, "data": {}}


def controller(uid: str, kind: str = "InferencePool") -> list[Object]:
    version = f"{POOL.group}/{POOL.version}"
    return [{"apiVersion": version, "kind": kind, "name": "llm", "uid": uid, "controller": True}]


@pytest.mark.parametrize(
    ("body", "ours"),
    [
        pytest.param(stray(annotations={"headroom.dev/pool-name": "llm"}), True, id="annotated"),
        pytest.param(stray(ownerReferences=controller("uid-llm")), True, id="lost its annotation"),
        pytest.param(stray(ownerReferences=controller("uid-before")), False, id="of an earlier pool"),
        pytest.param(stray(ownerReferences=controller("uid-llm", "Job")), False, id="of another kind"),
        pytest.param(stray(), False, id="says nothing"),
        pytest.param(
            stray(annotations={"headroom.dev/pool-name": "b"}, ownerReferences=controller("uid-llm")),
            False,
            id="annotated for another pool",
        ),
        pytest.param(
            {"metadata": {"name": "old-config", "ownerReferences": controller("uid-llm")}},
            False,
            id="without our label",
        ),
    ],
)
def test_whose_child_an_object_is(body: Object, ours: bool) -> None:
    bench = Bench()
    bench.put(CONFIG_MAP, body)
    assert ((CONFIG_MAP, "old-config") in bench.observe().children) is ours


@pytest.mark.parametrize(
    "spec", [{"selector": {}}, {"targetPorts": "8000"}, {"endpointPickerRef": {"name": 5}}]
)
def test_a_pool_that_its_type_refuses_is_observed(spec: Object) -> None:
    bench = Bench(pool=pool_body(**spec))
    bench.run()
    seen = bench.observe()
    assert (seen.pool, seen.pool_uid) == (None, "uid-llm")
    assert next(iter(spec)) in seen.pool_fault
    assert seen.child(DEPLOYMENT, "llm-epp"), "what runs is known all the same"


def test_an_endpoint_picker_that_its_type_refuses_is_observed() -> None:
    bench = Bench()
    bench.put(PICKER, {"metadata": {"name": "llm"}, "spec": {"proxy": {"mode": "Sometimes"}}})
    assert "spec.proxy.mode" in bench.observe().picker_fault


def test_a_service_that_is_not_ours_is_read_live() -> None:
    bench = Bench()
    mine = {"metadata": {"name": "llm-epp", "namespace": "ns"}, "spec": {"selector": {"app": "mine"}}}
    bench.connection.objects[SERVICE.path("ns", "llm-epp")] = mine
    seen = bench.observe()
    assert seen.service == mine
    assert seen.absent_for == 0.0


def test_for_how_long_the_service_has_been_absent_is_counted() -> None:
    bench = Bench()
    assert bench.observe().absent_for == 0.0
    bench.now += 3.0
    assert bench.observe().absent_for == 3.0
    bench.put(SERVICE, {"metadata": {"name": "llm-epp"}, "spec": {}})
    assert bench.observe().absent_for == 0.0


@pytest.mark.parametrize(("replicas", "asked"), [(1, False), (2, True)])
def test_pods_are_asked_why_while_a_roll_out_is_not_over(replicas: int, asked: bool) -> None:
    bench = Bench()
    bench.run()
    live = dict(bench.cache.get(DEPLOYMENT, "ns", "llm-epp") or {})
    live["metadata"] = {**live["metadata"], "resourceVersion": "2"}
    counts = {"readyReplicas": 1, "updatedReplicas": 1, "replicas": replicas}
    bench.cache.put(DEPLOYMENT, {**live, "status": {"observedGeneration": 1, **counts}})
    bench.observe()
    selectors = [call.query.get("labelSelector") for call in bench.connection.calls if "/pods" in call.path]
    assert ("app=llm-epp" in selectors) is asked


def test_a_right_that_is_missing_elsewhere_does_not_concern_the_pool() -> None:
    here = Denied(kind=SERVICE, verb="patch", namespace="ns")
    elsewhere = Denied(kind=DEPLOYMENT, verb="patch", namespace="other")
    watched = Denied(kind=ROLE_BINDING, verb="watch", namespace="other")
    access = replace(FULL_ACCESS, lacking=frozenset({here, elsewhere, watched}))
    seen = Bench(access).observe()
    assert seen.access.lacking == {here, watched}
    assert seen.access.blind == {SERVICE, ROLE_BINDING}, "a kind has one watch for all namespaces"


def test_without_the_right_to_list_pods_none_are_counted() -> None:
    bench = Bench()
    with bench.connection.refusing("get pods", 403, "Forbidden"):
        assert bench.observe().endpoints.total == 0
