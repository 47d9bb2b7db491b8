"""InferencePool, inference.networking.k8s.io/v1: the upstream type, field for field.

`endpointPickerRef` is required by upstream's CRD through v1.5 and optional since v1.6; it is optional here.
"""

from typing import Annotated, Final

from pydantic import ConfigDict, Field

from inference_api.markers import SERVER_DEFAULTED, Schema, list_of, rules
from inference_api.meta import (
    GROUP_PATTERN,
    ApiType,
    Conditions,
    KindName,
    ObjectMeta,
    ObjectName,
    PortNumber,
)

HTTP: Final = "http"
H2C: Final = "kubernetes.io/h2c"
FAIL_OPEN: Final = "FailOpen"
FAIL_CLOSE: Final = "FailClose"

LabelValue = Annotated[
    str, Schema(minLength=0, maxLength=63, pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
]
GroupName = Annotated[str, Schema(minLength=0, maxLength=253, pattern=GROUP_PATTERN)]


class Port(ApiType):
    """A network port."""

    number: PortNumber
    """Port number, 1 to 65535."""


class LabelSelector(ApiType):
    """Selects pods of the pool's own namespace."""

    match_labels: Annotated[dict[str, LabelValue], Schema(minProperties=1, maxProperties=64)]
    """Labels that a pod must all carry. Keys are not validated by the API server."""


class EndpointPickerRef(ApiType):
    """Where a gateway finds the endpoint picker of the pool."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": rules(
                (
                    "self.kind != 'Service' || has(self.port)",
                    "port is required when kind is 'Service' or unspecified (defaults to 'Service')",
                )
            )
        }
    )

    group: Annotated[GroupName, SERVER_DEFAULTED] = ""
    """API group of the referent; empty is the core group."""
    kind: Annotated[KindName, SERVER_DEFAULTED] = "Service"
    """Kind of the referent. No implementation supports a Service of type ExternalName."""
    name: ObjectName
    """Name of the referent, in the pool's namespace."""
    port: Port | None = None
    """Service port of the picker; required when the referent is a Service."""
    failure_mode: Annotated[str, Schema(enum=[FAIL_OPEN, FAIL_CLOSE]), SERVER_DEFAULTED] = FAIL_CLOSE
    """What a gateway does while the picker does not answer. FailOpen: pick by itself. FailClose: refuse."""


class InferencePoolSpec(ApiType):
    """The pods that serve, their ports, and the endpoint picker."""

    selector: LabelSelector
    """Pods of the pool."""
    target_ports: Annotated[
        tuple[Port, ...],
        list_of(
            "atomic",
            minItems=1,
            maxItems=8,
            **{
                "x-kubernetes-validations": rules(
                    ("self.all(p1, self.exists_one(p2, p1.number==p2.number))", "port number must be unique")
                )
            },
        ),
    ]
    """Ports that every pod serves; each is an endpoint of its own."""
    app_protocol: Annotated[str, Schema(enum=[HTTP, H2C]), SERVER_DEFAULTED] = HTTP
    """Protocol of all target ports: http is HTTP/1.1, kubernetes.io/h2c is HTTP/2 without TLS."""
    endpoint_picker_ref: EndpointPickerRef | None = None
    """The pool's endpoint picker."""


class ParentReference(ApiType):
    """A gateway or another object that routes to the pool."""

    group: Annotated[GroupName, SERVER_DEFAULTED] = "gateway.networking.k8s.io"
    """API group of the parent."""
    kind: Annotated[KindName, SERVER_DEFAULTED] = "Gateway"
    """Kind of the parent."""
    name: ObjectName
    """Name of the parent."""
    namespace: (
        Annotated[str, Schema(minLength=1, maxLength=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] | None
    ) = None
    """Namespace of the parent; absent means the pool's."""


class ParentStatus(ApiType):
    """The pool's state for one parent."""

    parent_ref: ParentReference
    """The parent that this entry is about."""
    controller_name: (
        Annotated[
            str,
            Schema(
                minLength=1,
                maxLength=253,
                pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
                r"\/[A-Za-z0-9\/\-._~%!$&'()*+,;=:]+$",
            ),
        ]
        | None
    ) = None
    """Controller that wrote this entry, as DOMAIN/PATH."""
    conditions: Conditions = ()
    """Accepted and ResolvedRefs, for this parent."""


class InferencePoolStatus(ApiType):
    """Written by gateways, one entry each. The list is atomic: read, change your own entry, write it back."""

    parents: Annotated[tuple[ParentStatus, ...], list_of("atomic", maxItems=32)] = ()
    """One entry a parent; empty when nothing routes to the pool."""


class InferencePool(ApiType):
    """A set of model server pods behind one endpoint picker."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: InferencePoolSpec
    """Desired state, set by the user."""
    status: InferencePoolStatus | None = None
    """Observed state, written by gateways."""
