"""Golden pairs: what is seen of a pool (`<case>.in.yaml`) and what follows from it (`<case>.out.yaml`).

An input says only what differs from a plain pool, an output only what differs from that pool's objects, which
`plain.out.yaml` has whole. HEADROOM_UPDATE_GOLDEN=1 writes the outputs anew: review them as a diff.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from pydantic import BaseModel

from inference_api.endpoint_picker import EndpointPickerSpec
from inference_api.inference_pool import InferencePoolSpec
from inference_api.prediction_report import PredictionReport
from inference_operator.core import reasons
from inference_operator.core.desired.plan import desired, superfluous
from inference_operator.core.desired.proxy import proxy_settings
from inference_operator.core.endpoints import EndpointTally
from inference_operator.core.kinds import CHILD_KINDS, EVENT, OBJECTIVES, PICKER, POD, POOL, SERVICE, Kind
from inference_operator.core.observation import Denied, Failure, Observation, Rival
from inference_operator.core.ownership import judge
from inference_operator.core.status import report
from observations import (
    FULL_ACCESS,
    SETTINGS,
    ago,
    answered,
    as_live,
    objective,
    observation,
    picker_body,
    pool_body,
    settled,
)

Object = dict[str, Any]
GOLDEN: Final = Path(__file__).parent / "golden"
CASES: Final = sorted(path.name.removesuffix(".in.yaml") for path in GOLDEN.glob("*.in.yaml"))
KINDS: Final[Mapping[str, Kind]] = {
    kind.kind: kind for kind in (POOL, PICKER, *CHILD_KINDS, POD, EVENT, OBJECTIVES[0])
}
#: Keys of an input.
KNOWN: Final = frozenset(
    {"pool", "picker", "objectives", "settings", "running", "live", "answered", "predicted"}
    | {"endpoints", "pods"}
    | {"lacking", "refused", "absentFor", "knownFor", "rivals"}
)


@cache
def load(case: str) -> Object:
    made: Object = yaml.safe_load((GOLDEN / f"{case}.in.yaml").read_text()) or {}
    assert made.keys() <= KNOWN, f"{case}: {sorted(made.keys() - KNOWN)}"
    return made


def merged(base: Any, over: Any) -> Any:
    """Return `base` with `over` over it; null removes."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    made = {**base, **{key: merged(base.get(key), value) for key, value in over.items()}}
    return {key: value for key, value in made.items() if not (key in over and over[key] is None)}


def seen_in(case: Object) -> Observation:
    """Return the observation that an input describes."""
    picker = None if "picker" not in case else merged(picker_body(), case["picker"])
    before = observation()
    if case.get("running"):
        was = case["running"]
        before = settled(observation(picker=picker_body(**was) if isinstance(was, dict) else None))
    seen = before.with_pool(merged(pool_body(), case.get("pool", {})))
    seen = replace(seen, settings=replace(SETTINGS, **case.get("settings", {})))
    seen = replace(
        seen,
        objectives=tuple(
            objective(each["name"], each.get("priority")) for each in case.get("objectives", ())
        ),
        endpoints=EndpointTally(*case.get("endpoints", (0, 0))),
        picker_pods=tuple(case.get("pods", ())),
        access=replace(FULL_ACCESS, lacking=frozenset(denied(each) for each in case.get("lacking", ()))),
        absent_for=case.get("absentFor", 0.0 if case.get("running") else 60.0),
        known_for=case.get("knownFor", 60.0),
        rivals=tuple(
            Rival(name=each["name"], uid=f"uid-{each['name']}", created=ago(each["seconds"]))
            for each in case.get("rivals", ())
        ),
    ).with_picker(before.picker_object if picker is None else picker)
    for called, change in case.get("live", {}).items():
        seen = with_live(seen, called, change)
    if case.get("answered") is not None:
        seen = answered(seen, case["answered"])
    if "predicted" in case:
        report = PredictionReport.model_validate(case["predicted"])
        seen = replace(seen, picker_answer=replace(seen.picker_answer, prediction=report))
    return seen


def with_live(seen: Observation, called: str, change: Object | None) -> Observation:
    """Return the observation with an object of the cluster changed, added, or (null) taken away."""
    kind, name = KINDS[called.partition("/")[0]], called.partition("/")[2]
    if kind is PICKER:
        return seen.with_picker(merged(seen.picker_object, change))
    if kind is SERVICE and name == seen.picker_name:
        held = seen.service or {"metadata": {"name": name, "namespace": "ns"}}
        live = None if change is None else merged(held, change)
        ours = (kind, name) in seen.children and live is not None
        others = {key: body for key, body in seen.children.items() if key != (kind, name)}
        return replace(
            seen, service=live, children={**others, **({(kind, name): live} if ours and live else {})}
        )
    held = seen.children.get((kind, name)) or as_live(kind, {"metadata": {"name": name, "namespace": "ns"}})
    children = {key: body for key, body in seen.children.items() if key != (kind, name)}
    if change is not None:
        children[kind, name] = merged(held, change)
    return replace(seen, children=children)


def denied(right: str) -> Denied:
    """Return the right that an input spells as "patch Service" or "update InferencePool/status"."""
    verb, _, rest = right.partition(" ")
    kind, _, subresource = rest.partition("/")
    return Denied(kind=KINDS[kind], verb=verb, subresource=subresource)


def failure(refused: Object) -> Failure:
    kind, _, name = refused["object"].partition("/")
    words = {"kind": kind, "name": name, "message": refused.get("message", "")}
    finding = getattr(reasons, refused["reason"]).say(**words)
    return Failure(kind=KINDS[kind], name=name, finding=finding)


def follows(case: Object) -> Object:
    """Return what the operator makes of an input."""
    seen = seen_in(case)
    verdict = judge(seen)
    intents = desired(seen, verdict)
    made = report(seen, verdict, [failure(each) for each in case.get("refused", ())])
    plain = {} if case == {} else objects(observation())
    wanted = objects(seen)
    unchanged = [called for called, body in wanted.items() if plain.get(called) == body]
    return {
        "stance": verdict.stance.value,
        "annotation": made.summary.reason,
        "objects": {
            **({"as plain": unchanged} if unchanged else {}),
            **{
                called: changes(plain.get(called), body)
                for called, body in wanted.items()
                if called not in unchanged
            },
        },
        "removed": sorted(f"{kind.kind}/{name}" for kind, name in superfluous(seen, verdict, intents)),
        "conditions": [
            f"{each.type} {each.status} {each.reason}: {each.message}" for each in made.status.conditions
        ],
        "status": {key: value for key, value in made.status.to_json().items() if key != "conditions"},
        "events": [f"{each.finding.reason} ({'good' if each.good else 'bad'})" for each in made.transitions],
    }


def objects(seen: Observation) -> dict[str, Object]:
    return {f"{i.kind.kind}/{i.name}": outline(seen, i.body) for i in desired(seen, judge(seen))}


def outline(seen: Observation, body: Object) -> Object:
    """Return the body with the settings of Envoy's bootstrap, which has tests of its own, in its place."""
    made: Object = yaml.safe_load(yaml.safe_dump(body, sort_keys=False))
    if body["kind"] == "Deployment" and body["metadata"]["name"].endswith("-proxy"):
        container = made["spec"]["template"]["spec"]["containers"][0]
        place = container["args"].index("--config-yaml") + 1
        container["args"][place] = asdict(proxy_settings(seen))
    return made


def changes(base: Any, body: Any) -> Any:
    """Return the parts of `body` that `base` has not; what only `base` has is null.

    Lists of as many objects are compared item by item.
    """
    lists = isinstance(base, list) and isinstance(body, list) and len(base) == len(body)
    if lists and all(isinstance(item, dict) for item in (*base, *body)):
        return [changes(one, other) for one, other in zip(base, body, strict=True)]
    if not isinstance(base, dict) or not isinstance(body, dict):
        return body
    gone = dict.fromkeys(sorted(base.keys() - body.keys()))
    return {**{k: changes(base.get(k), v) for k, v in body.items() if base.get(k) != v}, **gone}


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str) -> None:
    text = yaml.safe_dump(follows(load(case)), sort_keys=False, width=110, allow_unicode=True)
    file = GOLDEN / f"{case}.out.yaml"
    if os.environ.get("HEADROOM_UPDATE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


def test_every_output_has_an_input() -> None:
    outputs = {path.name.removesuffix(".out.yaml") for path in GOLDEN.glob("*.out.yaml")}
    assert outputs == set(CASES)
    assert "plain" in CASES


def fields(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each leaf field of a type, as it is on the wire."""
    for name, info in model.model_fields.items():
        here = (*path, info.alias or name)
        kinds = [info.annotation, *getattr(info.annotation, "__args__", ())]
        inner = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)
        if inner is None or getattr(info.annotation, "__origin__", None) is tuple:
            yield here
        else:
            yield from fields(inner, here)


@pytest.mark.parametrize(
    ("part", "field"),
    [
        *(("pool", field) for field in fields(InferencePoolSpec)),
        *(("picker", field) for field in fields(EndpointPickerSpec)),
    ],
    ids=lambda value: value if isinstance(value, str) else ".".join(value),
)
def test_every_field_of_a_spec_has_a_case(part: str, field: tuple[str, ...]) -> None:
    def sets(case: str) -> bool:
        place = (load(case).get(part) or {}).get("spec") or {}
        for name in field:
            if not isinstance(place, dict) or name not in place:
                return False
            place = place[name]
        return True

    assert [case for case in CASES if sets(case)], f"no golden case sets {part} spec.{'.'.join(field)}"
