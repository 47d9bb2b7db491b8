"""All that a decision about one pool may depend on. Pure values; any of them may be stale.

`observe.py` makes an Observation; `ownership`, `desired` and `status` read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from pydantic import ValidationError

from inference_api import names
from inference_api.endpoint_picker import EndpointPicker, EndpointPickerSpec, EndpointPickerStatus
from inference_api.inference_model_rewrite import InferenceModelRewrite
from inference_api.inference_objective import InferenceObjective
from inference_api.inference_pool import EndpointPickerRef, InferencePool
from inference_operator.core.endpoints import EndpointTally
from inference_operator.core.kinds import Kind, Object, PoolKey
from inference_operator.core.picker_answers import PickerAnswer
from inference_operator.core.reasons import Finding
from inference_operator.core.settings import Settings

#: Kind and name of a child; the namespace is the pool's.
ChildKey = tuple[Kind, str]
#: The most fields that a message names.
_FAULTS_NAMED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """Another pool of the namespace that names the same picker."""

    name: str
    uid: str
    created: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """A right that the operator lacks."""

    kind: Kind
    verb: str
    subresource: str = ""
    namespace: str | None = None
    """Namespace in which the right is lacking; None is the whole cluster."""

    @property
    def right(self) -> str:
        """The right as RBAC spells it: "patch inferencepools/status.inference.networking.k8s.io"."""
        kind = self.kind
        plural = f"{kind.plural}/{self.subresource}" if self.subresource else kind.plural
        return f"{self.verb} {plural}.{kind.group}" if kind.group else f"{self.verb} {plural}"

    @property
    def hides(self) -> bool:
        """Whether the operator cannot watch the kind, not even in other namespaces: one watch covers all."""
        return self.verb in {"list", "watch"} and not self.subresource

    @property
    def blinds(self) -> bool:
        """Whether the operator must make no object of the kind there: it could not see or heal the object."""
        return self.hides or (self.verb == "patch" and not self.subresource)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The operator's rights and the kinds that are served, as of the last resync."""

    served: frozenset[Kind] = frozenset()
    """Kinds that the API server serves."""
    lacking: frozenset[Denied] = frozenset()
    """Missing rights."""
    blind: frozenset[Kind] = frozenset()
    """Kinds that cannot be listed, watched or patched: the operator makes no object of them."""
    objectives: Kind | None = None
    """The kind of InferenceObjective in use: the first of the groups that is served."""
    rewrites: Kind | None = None
    """The kind of InferenceModelRewrite in use: that of the first group that is served and readable."""
    ignored: Kind | None = None
    """The other InferenceObjective kind, if it is served and readable too: its objects are only counted."""

    def lacks(self, kind: Kind) -> bool:
        """Return whether the kind is optional and not served, so that its children are left out."""
        return kind.optional and kind not in self.served

    @property
    def denied(self) -> tuple[str, ...]:
        """Missing rights as "verb resource", sorted."""
        return tuple(sorted({each.right for each in self.lacking}))

    def within(self, namespace: str) -> "Access":
        """Return the access that applies to the pools of one namespace."""
        here = frozenset(each for each in self.lacking if each.namespace in {None, namespace} or each.hides)
        return replace(self, lacking=here, blind=frozenset(each.kind for each in here if each.blinds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One pool and what surrounds it."""

    key: PoolKey
    settings: Settings
    now: datetime
    pool: InferencePool | None = None
    """The pool, typed; None when there is none, or when its type refuses it."""
    pool_object: Object | None = None
    """The pool as JSON, with the fields that its type does not have; None when there is no pool."""
    pool_fault: str = ""
    """Which field of the pool its type refuses, and why; "" when none."""
    picker_object: Object | None = None
    """The EndpointPicker with the pool's name, a user's or the operator's; None when there is none."""
    picker: EndpointPicker | None = None
    """The EndpointPicker, typed; None also when its type refuses it."""
    picker_fault: str = ""
    """Which field of the EndpointPicker its type refuses, and why; "" when none."""
    held_status: EndpointPickerStatus | None = None
    """The EndpointPicker's present status, also with a spec that its type refuses; None without one."""
    service: Object | None = None
    """The Service that the pool names, Headroom's or not; read live when the cache has none."""
    children: Mapping[ChildKey, Object] = field(default_factory=dict)
    """Objects that Headroom made for this pool (`ownership.ours`), without the EndpointPicker."""
    rivals: tuple[Rival, ...] = ()
    objectives: tuple[InferenceObjective, ...] = ()
    """Objectives that point at this pool, by name."""
    rewrites: tuple[InferenceModelRewrite, ...] = ()
    """Model rewrites that point at this pool, oldest first."""
    ignored_objectives: int = 0
    """Objectives of `Access.ignored` that point at this pool."""
    endpoints: EndpointTally = field(default_factory=EndpointTally)
    picker_pods: tuple[Object, ...] = ()
    """Unready pods of the picker's and the proxy's Deployment, each while its rollout is not complete."""
    picker_answer: PickerAnswer = field(default_factory=PickerAnswer)
    """What the picker's pods answered about their configuration and connections."""
    absent_for: float = 0.0
    """Seconds for which the picker Service is known to have been absent; 0 while it exists."""
    known_for: float = 0.0
    """Seconds for which the pool is known to have named this picker."""
    access: Access = field(default_factory=Access)

    @property
    def namespace(self) -> str:
        """Namespace of the pool."""
        return self.key[0]

    @property
    def pool_name(self) -> str:
        """Name of the pool, and of its EndpointPicker."""
        return self.key[1]

    @property
    def present(self) -> InferencePool:
        """The pool, typed. Raises LookupError when `pool` is None, which the caller has to rule out."""
        if self.pool is None:
            raise LookupError(f"pool {self.namespace}/{self.pool_name} was not observed")
        return self.pool

    @property
    def pool_metadata(self) -> Object:
        """The pool's metadata as JSON; empty when there is no pool."""
        return {} if self.pool_object is None else self.pool_object["metadata"]

    @property
    def pool_uid(self) -> str:
        """The pool's uid; empty when there is no pool."""
        return str(self.pool_metadata.get("uid", ""))

    @property
    def picker_ref(self) -> EndpointPickerRef | None:
        """The pool's spec.endpointPickerRef; None when the pool has none or was not understood."""
        return None if self.pool is None else self.pool.spec.endpoint_picker_ref

    @property
    def picker_name(self) -> str:
        """Name of the picker's Service, Deployment and ServiceAccount; empty when the pool names none."""
        if self.pool is None and self.pool_object is not None:
            return self._name_as_it_came()
        ref = self.picker_ref
        return "" if ref is None else ref.name

    def _name_as_it_came(self) -> str:
        """Return the picker's name from a pool that its type refuses, to find the running picker."""
        place: object = self.pool_object
        for part in ("spec", "endpointPickerRef", "name"):
            place = place.get(part) if isinstance(place, dict) else None
        return place if isinstance(place, str) else ""

    @property
    def spec(self) -> EndpointPickerSpec:
        """The EndpointPicker's spec; all defaults when there is no EndpointPicker."""
        return EndpointPickerSpec() if self.picker is None else self.picker.spec

    def with_pool(self, body: Object | None) -> "Observation":
        """Return the observation with this pool."""
        pool, fault = None, ""
        if body is not None:
            try:
                # Gateways write the status: an entry that the type refuses must not make the pool invalid.
                pool = InferencePool.model_validate({k: v for k, v in body.items() if k != "status"})
            except ValidationError as error:
                fault = field_faults(error)
        return replace(self, pool_object=body, pool=pool, pool_fault=fault)

    def with_picker(self, body: Object | None) -> "Observation":
        """Return the observation with this EndpointPicker."""
        picker, fault, status = None, "", None
        if body is not None:
            try:
                status = EndpointPickerStatus.model_validate(body.get("status") or {})
            except ValidationError:
                status = None  # of another version; this pass writes it anew
            try:
                picker = EndpointPicker.model_validate({k: v for k, v in body.items() if k != "status"})
            except ValidationError as error:
                fault = field_faults(error)
        return replace(self, picker_object=body, picker=picker, picker_fault=fault, held_status=status)

    @property
    def managed_annotation(self) -> str:
        """Value of headroom.dev/managed on the pool; empty when absent."""
        return str((self.pool_metadata.get("annotations") or {}).get(names.MANAGED_ANNOTATION, ""))

    def child(self, kind: Kind, name: str) -> Object | None:
        """Return Headroom's child of that kind and name, or None."""
        return self.children.get((kind, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A write that the API server refused."""

    kind: Kind
    name: str
    finding: Finding
    final: bool = False
    """Whether to give up instead of retrying: the namespace is being deleted."""


def field_faults(error: ValidationError) -> str:
    """Return which fields a type refuses and why, without their values: "spec.a: Field required"."""
    faults = [
        f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
        for fault in error.errors(include_url=False, include_input=False)
    ]
    more = len(faults) - _FAULTS_NAMED
    return "; ".join(faults[:_FAULTS_NAMED]) + (f"; and {more} more" if more > 0 else "")
