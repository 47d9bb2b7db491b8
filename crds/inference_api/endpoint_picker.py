"""EndpointPicker, headroom.dev/v1alpha1: what a user may set about the picker of the pool of the same name.

Every field of the spec is optional and has an effect. Defaults live here and not in the CRD, which would
freeze them into each object at its creation.
"""

from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field

from inference_api.container import Image, ResourceRequirements
from inference_api.latency_predictor import LatencyPredictorSpec, LatencyPredictorStatus
from inference_api.markers import Schema, list_of, rules
from inference_api.meta import ApiType, Condition, Generation, ObjectMeta, find_condition
from inference_api.names import PICKER_GROUP, PICKER_KIND, PICKER_VERSION

CONFIG_KIND: Final = "EndpointPickerConfig"
CONFIG_API_VERSIONS: Final = ("llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1")

# Condition types of an EndpointPicker, in the order in which they are judged.
ACCEPTED: Final = "Accepted"
RESOLVED_REFS: Final = "ResolvedRefs"
PICKER_READY: Final = "PickerReady"
ENDPOINTS_READY: Final = "EndpointsReady"
#: Whether the picker can connect to the endpoints, by target port.
ENDPOINTS_REACHABLE: Final = "EndpointsReachable"
#: Whether gateways can connect to the picker.
PICKER_REACHABLE: Final = "PickerReachable"
#: Whether the picker uses the configuration that it was given. Unknown does not keep the summary from True.
CONFIG_ACCEPTED: Final = "ConfigAccepted"
#: Whether requests are routed by predicted latency. It exists while the EndpointPicker asks for prediction,
#: and has no part in the summary: without predictions the heuristic profile picks.
PREDICTOR_READY: Final = "PredictorReady"
#: Whether the pool is one that can be predicted, and the servers are enough for its rate; as PREDICTOR_READY.
PREDICTION_SUPPORTED: Final = "PredictionSupported"
#: The summary: True when all others are, else the reason of the first that is not.
READY: Final = "Ready"

Count = Annotated[int, Schema(format="int32", minimum=0)]


class ProxyMode(StrEnum):
    """Whether Headroom runs an Envoy of its own in front of the pool."""

    NONE = "None"
    DEPLOYMENT = "Deployment"


class ProxySpec(ApiType):
    """An Envoy in front of the pool, for clusters without a gateway that supports InferencePools."""

    mode: ProxyMode = ProxyMode.NONE
    """None (the default) runs no proxy; Deployment runs one behind the Service `<picker>-proxy`."""
    replicas: Annotated[int, Schema(format="int32", minimum=1, maximum=1000)] = 1
    """Number of proxy pods; 1 when absent."""
    image: Image | None = None
    """Envoy image; the operator's --proxy-image when absent."""
    resources: ResourceRequirements | None = None
    """Resources of the Envoy container."""


_COLLECTOR_URL: Final = r"^https?://(\[[0-9a-fA-F:.]+\]|[^\s/?#:@\[\]]+)(:[0-9]{1,5})?(/\S*)?$"


class TracingSpec(ApiType):
    """Traces of requests, exported to an OpenTelemetry collector."""

    endpoint: Annotated[str, Schema(minLength=1, maxLength=2048, pattern=_COLLECTOR_URL)]
    """URL of a collector that takes OTLP over HTTP, as in http://otel-collector.monitoring:4318."""
    sampling_percent: Annotated[int, Schema(format="int32", minimum=0, maximum=100)] = 10
    """Share of the requests without a traceparent that is traced; 10 when absent. A request with one is
    traced when its parent is."""


Model = Annotated[str, Schema(minLength=1, maxLength=256)]
ObjectiveName = Annotated[
    str, Schema(minLength=1, maxLength=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]


class ModelObjective(ApiType):
    """The objective of the requests for one model or LoRA adapter."""

    model: Model
    """Value of `model` in the request's body."""
    objective: ObjectiveName
    """Name of an InferenceObjective of the pool."""


_TRUST_NEEDS_A_QUEUE: Final = "!self.?trustTenantHeaders.orValue(false) || self.?enabled.orValue(false)"


class FlowControlSpec(ApiType):
    """Priorities by objective, fair shares by tenant, and a queue for requests while the pool is full."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": rules(
                (
                    _TRUST_NEEDS_A_QUEUE,
                    "trustTenantHeaders acts on the queue: set enabled to true as well",
                )
            )
        }
    )

    enabled: bool = False
    """True lets requests wait by priority while the pool is saturated: the feature gate `flowControl`."""
    default_objective: ObjectiveName | None = None
    """Objective of the requests that name none and whose model has none; when absent, priority 0."""
    model_objectives: Annotated[tuple[ModelObjective, ...], list_of("map", "model", maxItems=256)] = ()
    """Objectives by model or LoRA adapter, of the requests that name none."""
    trust_tenant_headers: bool = False
    """True takes the fairness id, by which tenants share, from the request's header. Set it only where a
    gateway sets or removes that header."""


class EndpointPickerSpec(ApiType):
    """The user's settings; all are optional."""

    paused: bool = False
    """True keeps the operator from changing or healing this picker's objects; it still writes the status."""
    image: Image | None = None
    """Picker image; the operator's --epp-image when absent."""
    config: (
        Annotated[
            dict[str, Any],
            Schema(
                type="object",
                properties={
                    "apiVersion": {"type": "string", "enum": list(CONFIG_API_VERSIONS)},
                    "kind": {"type": "string", "enum": [CONFIG_KIND]},
                },
                **{"x-kubernetes-preserve-unknown-fields": True},
            ),
        ]
        | None
    ) = None
    """Body of the EndpointPickerConfig: plugins, profiles, weights. Headroom's default when absent."""
    resources: ResourceRequirements | None = None
    """Resources of the picker container."""
    access_log: bool = False
    """True makes the picker write a JSON line on standard output for each request."""
    tracing: TracingSpec | None = None
    """Where the picker exports traces; none when absent."""
    proxy: ProxySpec = Field(default_factory=ProxySpec)
    """The standalone proxy; none when absent."""
    flow_control: FlowControlSpec = Field(default_factory=FlowControlSpec)
    """Queueing by priority, and which objective a request without a header has."""
    latency_predictor: LatencyPredictorSpec = Field(default_factory=LatencyPredictorSpec)
    """Routing by the latency that is predicted for a request on each endpoint; off when absent."""


class EndpointCounts(ApiType):
    """Endpoints of the pool: each target port of each selected pod is one."""

    ready: Count = 0
    """Endpoints whose pod is ready and not terminating."""
    total: Count = 0
    """All endpoints."""


class EndpointPickerStatus(ApiType):
    """The observed state of the picker; written by the operator only."""

    conditions: Annotated[tuple[Condition, ...], list_of("map", "type", maxItems=16)] = ()
    """Accepted, ResolvedRefs, PickerReady, EndpointsReady, EndpointsReachable, PickerReachable,
    ConfigAccepted, and Ready as their summary; ProxyReady, PredictorReady and PredictionSupported while
    they are asked for."""
    observed_generation: Generation | None = None
    """metadata.generation of the EndpointPicker that this status describes."""
    observed_pool_generation: Generation | None = None
    """metadata.generation of the InferencePool that this status describes."""
    ready_replicas: Count | None = None
    """Picker pods that are ready."""
    endpoints: EndpointCounts | None = None
    """Endpoints of the pool."""
    priorities: Count | None = None
    """Entries of the priority table that the operator wrote for the picker."""
    proxy_address: str | None = None
    """host:port of the standalone proxy's Service, while there is one."""
    latency_predictor: LatencyPredictorStatus | None = None
    """What the picker says of prediction, while it is asked for."""

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of that type, or None."""
        return find_condition(self.conditions, kind)


class EndpointPicker(ApiType):
    """The endpoint picker of the InferencePool of the same name."""

    api_version: str = f"{PICKER_GROUP}/{PICKER_VERSION}"
    kind: str = PICKER_KIND
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: EndpointPickerSpec = Field(default_factory=EndpointPickerSpec)
    """Desired state, set by the user."""
    status: EndpointPickerStatus | None = None
    """Observed state, written by the operator."""
