"""Observations for unit tests of the operator: one healthy pool, and functions that change it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from inference_api.inference_objective import InferenceObjective
from inference_api.inference_pool import InferencePool
from inference_api.offered import Offered, OfferedText, Uses, text_mark
from inference_operator.core.desired.plan import desired
from inference_operator.core.kinds import CHILD_KINDS, CONFIG_MAP, OBJECTIVES, PICKER, POD, POOL, Kind, Object
from inference_operator.core.observation import Access, Observation
from inference_operator.core.ownership import Verdict, judge
from inference_operator.core.picker_answers import PickerAnswer
from inference_operator.core.settings import Settings

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
SETTINGS = Settings(epp_image="headroom-epp:1", proxy_image="envoy:1", predictor_image="headroom-predictor:1")
FULL_ACCESS = Access(
    served=frozenset({POOL, PICKER, *CHILD_KINDS, POD, OBJECTIVES[0]}), objectives=OBJECTIVES[0]
)


def pool_body(name: str = "llm", picker: str = "llm-epp", **more: Any) -> Object:
    """Return an InferencePool as the API server gives it; `more` overrides its metadata and spec."""
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "generation": 1,
        "resourceVersion": "10",
        "creationTimestamp": "2026-05-01T11:00:00Z",
        **more.pop("metadata", {}),
    }
    ref = {
        "group": "",
        "kind": "Service",
        "name": picker,
        "port": {"number": 9002},
        "failureMode": "FailOpen",
    }
    spec = {
        "selector": {"matchLabels": {"app": name}},
        "targetPorts": [{"number": 8000}],
        "appProtocol": "http",
        "endpointPickerRef": ref,
        **more,
    }
    return {"apiVersion": POOL.api_version, "kind": POOL.kind, "metadata": metadata, "spec": spec}


def picker_body(name: str = "llm", status: Object | None = None, **spec: Any) -> Object:
    """Return an EndpointPicker that a user made."""
    return {
        "apiVersion": PICKER.api_version,
        "kind": PICKER.kind,
        "metadata": {"name": name, "namespace": "ns", "uid": f"uid-picker-{name}", "generation": 3},
        "spec": spec,
        **({"status": status} if status else {}),
    }


def objective(name: str, priority: int | None = None, pool: str = "llm") -> InferenceObjective:
    """Return an objective that points at a pool."""
    return InferenceObjective.model_validate(
        {
            "metadata": {"name": name, "namespace": "ns", "generation": 2},
            "spec": {"poolRef": {"name": pool}, "priority": priority},
        }
    )


def observation(body: Object | None = None, picker: Object | None = None, **more: Any) -> Observation:
    """Return the observation of a pool whose picker Service has been absent for the take-up wait."""
    body = pool_body() if body is None else body
    seen = Observation(
        key=("ns", body["metadata"]["name"]),
        settings=SETTINGS,
        now=NOW,
        pool=InferencePool.model_validate(body),
        pool_object=body,
        absent_for=60.0,
        known_for=60.0,
        access=FULL_ACCESS,
    )
    return replace(seen.with_picker(picker), **more)


def settled(seen: Observation | None = None) -> Observation:
    """Return the observation of a pool all of whose children are as desired."""
    seen = observation() if seen is None else seen
    live = {
        (intent.kind, intent.name): as_live(intent.kind, intent.body) for intent in desired(seen, judge(seen))
    }
    own = next((body for (kind, _), body in live.items() if kind is PICKER), seen.picker_object)
    children = {key: body for key, body in live.items() if key[0] is not PICKER}
    service = next((body for (_, name), body in children.items() if name == seen.picker_name), None)
    return replace(seen, children=children, service=service, absent_for=0.0).with_picker(own)


def answered(seen: Observation, error: str = "", uses: Uses = Uses.OFFERED) -> Observation:
    """Return the observation with the picker's report on the configuration that is written now."""
    body = seen.children[CONFIG_MAP, f"{seen.picker_name}-config"]
    text = OfferedText(mark=text_mark(body["data"]["config.yaml"]), error=error, uses=uses)
    return replace(seen, picker_answer=PickerAnswer(answer=Offered(config=text)))


def as_live(kind: Kind, body: Object) -> Object:
    """Return the object as the API server would return it: with uid and generation."""
    metadata = {"uid": f"uid-{kind.plural}-{body['metadata']['name']}", "generation": 1, **body["metadata"]}
    return {**body, "metadata": metadata}


def ago(seconds: float) -> datetime:
    """Return a moment before NOW."""
    return NOW - timedelta(seconds=seconds)


def verdict_of(seen: Observation) -> Verdict:
    """Return the verdict on the observation."""
    return judge(seen)
