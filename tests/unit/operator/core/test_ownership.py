import json
from dataclasses import replace
from typing import Any

import pytest

from inference_operator.core.desired.plan import desired, superfluous
from inference_operator.core.kinds import CONFIG_MAP, DEPLOYMENT, PICKER, POOL, SERVICE
from inference_operator.core.observation import Access, Denied, Observation, Rival
from inference_operator.core.ownership import Stance, invalid_label_key, judge, users_own
from observations import FULL_ACCESS, SETTINGS, ago, observation, picker_body, pool_body, settled


def foreign_service(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "llm-epp", "namespace": "ns"}, "spec": spec}


def ref(**fields: Any) -> dict[str, Any]:
    base = {"group": "", "kind": "Service", "name": "llm-epp", "port": {"number": 9002}}
    return pool_body(endpointPickerRef={**base, **fields})


def annotated(value: str) -> dict[str, Any]:
    return pool_body(metadata={"annotations": {"headroom.dev/managed": value}})


GONE = replace(observation(), pool=None, pool_object=None)
TAKEN = Rival(name="elder", uid="uid-a", created=ago(7200))
YOUNGER = Rival(name="younger", uid="uid-z", created=ago(60))

CASES: dict[str, tuple[Observation, Stance, str]] = {
    "free": (observation(), Stance.MANAGED, "Accepted"),
    "no pool": (GONE, Stance.HANDS_OFF, "PoolNotFound"),
    "no pool CRD": (replace(GONE, access=Access()), Stance.HANDS_OFF, "KindNotInstalled"),
    "going": (
        observation(pool_body(metadata={"deletionTimestamp": "2026-05-01T11:59:00Z"})),
        Stance.HANDS_OFF,
        "PoolTerminating",
    ),
    "annotated false": (observation(annotated("false")), Stance.HANDS_OFF, "NotManaged"),
    "not annotated where it must be": (
        observation(settings=replace(SETTINGS, manage="annotated")),
        Stance.HANDS_OFF,
        "NotManaged",
    ),
    "annotated where it must be": (
        observation(annotated("true"), settings=replace(SETTINGS, manage="annotated")),
        Stance.MANAGED,
        "Accepted",
    ),
    "pools cannot be listed": (
        replace(
            observation(),
            pool=None,
            pool_object=None,
            access=replace(
                FULL_ACCESS,
                blind=frozenset({POOL}),
                lacking=frozenset({Denied(kind=POOL, verb="list"), Denied(kind=SERVICE, verb="get")}),
            ),
        ),
        Stance.HANDS_OFF,
        "AccessDenied",
    ),
    "no reference": (
        observation(pool_body(endpointPickerRef=None)),
        Stance.UNWORKABLE,
        "EndpointPickerRefMissing",
    ),
    "another kind": (observation(ref(kind="Thing")), Stance.UNWORKABLE, "UnsupportedRefKind"),
    "another group": (observation(ref(group="example.com")), Stance.UNWORKABLE, "UnsupportedRefKind"),
    "dotted name": (observation(ref(name="a.b")), Stance.UNWORKABLE, "InvalidPickerName"),
    "name that begins with a digit": (observation(ref(name="1a")), Stance.UNWORKABLE, "InvalidPickerName"),
    "name of 64": (observation(ref(name="a" * 64)), Stance.UNWORKABLE, "InvalidPickerName"),
    "name of 63": (observation(ref(name="a" * 63)), Stance.MANAGED, "Accepted"),
    "name too long for a proxy": (
        observation(ref(name="a" * 58), picker_body(proxy={"mode": "Deployment"})),
        Stance.MANAGED,
        "Accepted",
    ),
    "elder rival": (observation(rivals=(TAKEN,)), Stance.UNWORKABLE, "PickerNameTaken"),
    "younger rival": (observation(rivals=(YOUNGER,)), Stance.MANAGED, "Accepted"),
    "elder rival's Service is there": (
        observation(rivals=(TAKEN,), service=foreign_service(), absent_for=0.0),
        Stance.UNWORKABLE,
        "PickerNameTaken",
    ),
    "foreign Service": (
        observation(service=foreign_service(), absent_for=0.0),
        Stance.LET_GO,
        "ServiceNotOurs",
    ),
    "foreign Service, told to take over": (
        observation(annotated("true"), service=foreign_service(), absent_for=0.0),
        Stance.MANAGED,
        "Accepted",
    ),
    "external name": (
        observation(annotated("true"), service=foreign_service(type="ExternalName"), absent_for=0.0),
        Stance.LET_GO,
        "ServiceIsExternalName",
    ),
    "absent for 4 s": (observation(absent_for=4.0), Stance.WAITING, "WaitingForTakeUp"),
    "absent for 4 s, told to take over": (
        observation(annotated("true"), absent_for=4.0),
        Stance.MANAGED,
        "Accepted",
    ),
    "bad name, just seen": (
        observation(ref(name="a.b"), known_for=1.0),
        Stance.WAITING,
        "WaitingForTakeUp",
    ),
    "bad label key": (
        observation(pool_body(selector={"matchLabels": {"a b": "x"}})),
        Stance.HELD,
        "InvalidSelector",
    ),
    "our Service deleted a moment ago": (
        replace(settled(), service=None, absent_for=0.1),
        Stance.MANAGED,
        "Accepted",
    ),
    "EndpointPickers cannot be read": (
        replace(settled(), access=replace(FULL_ACCESS, blind=frozenset({PICKER}))),
        Stance.HELD,
        "AccessDenied",
    ),
    "all in place": (settled(), Stance.MANAGED, "Accepted"),
}


@pytest.mark.parametrize(("seen", "stance", "reason"), CASES.values(), ids=CASES.keys())
def test_verdict(seen: Observation, stance: Stance, reason: str) -> None:
    verdict = judge(seen)
    assert (verdict.stance, verdict.finding.reason) == (stance, reason)
    assert verdict.finding.message


def test_waiting_says_when_to_look_again() -> None:
    assert judge(observation(absent_for=4.0)).recheck_after == pytest.approx(1.0)


def test_a_service_of_ours_made_for_another_pool_is_not_this_pools() -> None:
    seen = settled()
    assert seen.service is not None
    other = {**seen.service["metadata"], "annotations": {"headroom.dev/pool-name": "another"}}
    verdict = judge(replace(seen, service={**seen.service, "metadata": other}))
    assert verdict.finding.reason == "ServiceNotOurs"


def with_service(seen: Observation, *entries: dict[str, Any], **spec: Any) -> Observation:
    """Return the observation with these managedFields entries and fields in its Service's spec."""
    live = seen.service or {}
    metadata = {**live["metadata"], "managedFields": list(entries)}
    return replace(seen, service={**live, "metadata": metadata, "spec": {**live["spec"], **spec}})


def owner(manager: str, operation: str, *fields: str) -> dict[str, Any]:
    return {"manager": manager, "operation": operation, "fieldsV1": {"f:spec": {f: {} for f in fields}}}


OURS = owner("headroom-operator", "Apply", "f:selector")
OTHER = {"app": "my-picker"}


@pytest.mark.parametrize(
    ("entries", "selector", "stance"),
    [
        pytest.param([OURS], None, Stance.MANAGED, id="ours alone"),
        pytest.param([OURS, owner("cloud", "Update", "f:type")], None, Stance.MANAGED, id="other fields"),
        pytest.param([owner("velero", "Update", "f:selector")], None, Stance.MANAGED, id="restored"),
        pytest.param([], None, Stance.MANAGED, id="restored without managers"),
        pytest.param([owner("argocd", "Apply", "f:selector")], None, Stance.MANAGED, id="copied"),
        pytest.param([OURS, owner("helm", "Update", "f:selector")], OTHER, Stance.LET_GO, id="taken"),
        pytest.param([OURS], OTHER, Stance.MANAGED, id="changed, not seen by whom: to be put right"),
    ],
)
def test_a_service_is_somebody_elses_when_they_changed_its_selector(
    entries: list[dict[str, Any]], selector: dict[str, str] | None, stance: Stance
) -> None:
    seen = settled()
    spec = {} if selector is None else {"selector": selector}
    assert judge(with_service(seen, *entries, **spec)).stance is stance


def test_the_taker_of_a_selector_is_named() -> None:
    verdict = judge(with_service(settled(), owner("helm", "Update", "f:selector"), selector=OTHER))
    assert verdict.finding.reason == "ServiceNotOurs"
    assert "helm" in verdict.finding.message


def test_letting_go_removes_all_of_ours_but_the_service() -> None:
    seen = settled()
    service = {**(seen.service or {}), "metadata": {"name": "llm-epp", "namespace": "ns"}}
    children = {key: body for key, body in seen.children.items() if key[0] is not SERVICE}
    seen = replace(seen, service=service, children=children)
    verdict = judge(seen)
    assert desired(seen, verdict) == ()
    doomed = superfluous(seen, verdict, ())
    assert set(doomed) == {*children, (PICKER, "llm")}


def test_letting_go_spares_a_users_endpoint_picker() -> None:
    seen = replace(settled(observation(picker=picker_body())), service=foreign_service())
    assert (PICKER, "llm") not in superfluous(seen, judge(seen), ())


def test_what_no_longer_belongs_is_removed_and_the_rest_kept() -> None:
    proxied = settled(observation(picker=picker_body(proxy={"mode": "Deployment"})))
    seen = proxied.with_picker(picker_body())
    verdict = judge(seen)
    doomed = superfluous(seen, verdict, desired(seen, verdict))
    assert set(doomed) == {(SERVICE, "llm-epp-proxy"), (DEPLOYMENT, "llm-epp-proxy")}


def test_a_bad_selector_makes_and_removes_no_picker() -> None:
    seen = settled()
    body = pool_body(selector={"matchLabels": {"a b": "x"}})
    held = replace(observation(body), children=seen.children, service=seen.service)
    verdict = judge(held)
    assert [intent.kind for intent in desired(held, verdict)] == [PICKER]
    assert superfluous(held, verdict, ()) == {}


def test_paused_changes_nothing() -> None:
    seen = observation(picker=picker_body(paused=True), children={(CONFIG_MAP, "old"): {"metadata": {}}})
    verdict = judge(seen)
    assert desired(seen, verdict) == ()
    assert superfluous(seen, verdict, ()) == {}


def test_an_endpoint_picker_is_ours_until_a_user_applies_one_over_it() -> None:
    (mine,) = (i.body for i in desired(observation(), judge(observation())) if i.kind is PICKER)
    assert not users_own(mine, "llm", "uid-llm")
    assert users_own(picker_body(), "llm", "uid-llm")
    entry = {"manager": "kubectl", "operation": "Apply"}
    assert users_own({**mine, "metadata": {**mine["metadata"], "managedFields": [entry]}}, "llm", "uid-llm")
    edit = {"manager": "kubectl-edit", "operation": "Update"}
    assert not users_own(
        {**mine, "metadata": {**mine["metadata"], "managedFields": [edit]}}, "llm", "uid-llm"
    )


def test_a_copy_of_ours_that_was_applied_is_ours_until_it_sets_something() -> None:
    (mine,) = (i.body for i in desired(observation(), judge(observation())) if i.kind is PICKER)
    held, metadata = mine["metadata"]["annotations"], mine["metadata"]
    label: dict[str, Any] = {"f:metadata": {"f:labels": {"f:app.kubernetes.io/managed-by": {}}}}
    applied = {"manager": "argocd", "operation": "Apply", "fieldsV1": label}
    last = "kubectl.kubernetes.io/last-applied-configuration"
    text = json.dumps({"metadata": {"labels": metadata["labels"]}})
    for more in ({"managedFields": [applied]}, {"annotations": {**held, last: text}}):
        copy = {**mine, "metadata": {**metadata, **more}}
        assert not users_own(copy, "llm", "uid-llm")
        assert users_own({**copy, "spec": {"image": "mine:1"}}, "llm", "uid-llm")
    odd = {**mine, "metadata": {**metadata, "annotations": {**held, last: "no JSON"}}}
    assert users_own(odd, "llm", "uid-llm")


@pytest.mark.parametrize("key", ["app", "app.kubernetes.io/name", "a/B_c.d", "A" * 63])
def test_good_label_keys(key: str) -> None:
    assert not invalid_label_key(key)


@pytest.mark.parametrize(
    "key", ["", "a b", "/x", "x/", "A.b/c", "a/b/c", "-a", "A" * 64, "é", f"{'a' * 254}/b"]
)
def test_bad_label_keys(key: str) -> None:
    assert invalid_label_key(key)


def test_the_pool_kind_is_the_upstream_one() -> None:
    assert POOL.path("ns", "x", "status") == (
        "/apis/inference.networking.k8s.io/v1/namespaces/ns/inferencepools/x/status"
    )
