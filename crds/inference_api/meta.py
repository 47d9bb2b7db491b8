"""What all Kubernetes objects share: object metadata, and conditions with their transition times.

Pure: the time is an argument.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from inference_api.markers import Schema, list_of

GROUP_PATTERN = r"^$|^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
KIND_PATTERN = r"^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$"

KindName = Annotated[str, Schema(minLength=1, maxLength=63, pattern=KIND_PATTERN)]
ObjectName = Annotated[str, Schema(minLength=1, maxLength=253)]
Int32 = Annotated[int, Schema(format="int32")]
PortNumber = Annotated[int, Schema(format="int32", minimum=1, maximum=65535)]
Generation = Annotated[int, Schema(format="int64", minimum=0)]

ConditionStatus = Literal["True", "False", "Unknown"]


class ApiType(BaseModel):
    """Base of all API types: camelCase on the wire, unknown fields ignored, immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
    )

    def to_json(self) -> dict[str, Any]:
        """Return what goes on the wire: camelCase keys, absent fields left out, times in RFC 3339."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class OwnerReference(ApiType):
    """One owner of an object."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False


class ObjectMeta(ApiType):
    """The parts of metav1.ObjectMeta that Headroom reads."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    owner_references: tuple[OwnerReference, ...] = ()


class Condition(ApiType):
    """One aspect of an object's state: metav1.Condition."""

    type: Annotated[
        str,
        Schema(
            maxLength=316,
            pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
            r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
        ),
    ]
    """CamelCase, or a domain, a slash and CamelCase."""
    status: ConditionStatus
    """True, False or Unknown."""
    reason: Annotated[
        str, Schema(minLength=1, maxLength=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    ]
    """One CamelCase word for programs: why the condition has this status."""
    message: Annotated[str, Schema(maxLength=32768)]
    """A sentence for people; may be empty."""
    last_transition_time: datetime
    """When `status` last changed; not when the reason or message did."""
    observed_generation: Generation | None = None
    """metadata.generation of the object that this condition describes."""


Conditions = Annotated[tuple[Condition, ...], list_of("map", "type", maxItems=8)]


def find_condition(conditions: Iterable[Condition], kind: str) -> Condition | None:
    """Return the condition of that type, or None."""
    return next((condition for condition in conditions if condition.type == kind), None)


def carry_times(wanted: Iterable[Condition], held: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return `wanted`, each with the transition time that `held` has for the same type and status.

    Compute all conditions with the present time, then pass them through here: when nothing changed, the
    result equals `held`, so that a comparison decides whether a write is due.
    """
    before = {condition.type: condition for condition in held}
    return tuple(
        condition.model_copy(update={"last_transition_time": old.last_transition_time})
        if (old := before.get(condition.type)) is not None and old.status == condition.status
        else condition
        for condition in wanted
    )


def api_time(moment: datetime) -> datetime:
    """Return the moment as the API server keeps it: UTC, whole seconds."""
    return moment.astimezone(UTC).replace(microsecond=0)
