"""The shape of an EndpointPickerConfig: strict, so that a misspelt key is an error and not a silent default.

Sections that this version does not act on are not in the shape, so they are refused with their path.
"""

import re
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from cluster_client.durations import seconds

KIND: Final = "EndpointPickerConfig"
API_VERSION: Final = "llm-d.ai/v1alpha1"
OLD_API_VERSION: Final = "inference.networking.x-k8s.io/v1alpha1"

Name = Annotated[str, Field(min_length=1, max_length=253)]


class Section(BaseModel):
    """Base of every part: camelCase keys, unknown ones are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False
    )


class PluginSpec(Section):
    """A plugin instance."""

    type: Name
    name: Name | None = None
    """Name for pluginRef; the type when absent."""
    parameters: dict[str, Any] | None = None


class PluginRef(Section):
    """A reference to an instance by its name."""

    plugin_ref: Name


class WeightedRef(PluginRef):
    """A plugin in a profile."""

    weight: float | None = Field(default=None, ge=0.0)
    """Factor of a scorer's answer; 1 when absent."""


class ProfileSpec(Section):
    """A scheduling profile: filters in order, scorers, at most one picker."""

    name: Name
    plugins: tuple[WeightedRef, ...] = ()


class SourceSpec(PluginRef):
    """A data source and its extractors."""

    extractors: tuple[PluginRef, ...] = ()


class DataLayerSpec(Section):
    """The sources of the endpoints' metrics."""

    inject_defaults: bool = True
    """Add the metrics source and its extractor when no source is listed. False and no source: no scraping."""
    sources: tuple[SourceSpec, ...] = ()


def _quantity(value: object) -> object:
    """Return a Kubernetes quantity ("1G", "512Mi", 5000) as a whole number. Raises ValueError."""
    if not isinstance(value, str):
        return value
    found = _QUANTITY.fullmatch(value)
    if found is None:
        raise ValueError('not a quantity; write it like 5000, "1G" or "512Mi"')
    return int(float(found[1]) * _MULTIPLES[found[2] or ""])


_QUANTITY: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(k|M|G|T|Ki|Mi|Gi|Ti)?")
_MULTIPLES: Final = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip

Seconds = Annotated[float, BeforeValidator(seconds), Field(ge=0.0, le=86_400.0 * 365)]
Quantity = Annotated[int, BeforeValidator(_quantity), Field(ge=0)]
Priority = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]


class BandTemplate(Section):
    """A priority band without its priority."""

    max_bytes: Quantity = 0
    """Most bytes of queued bodies; 0 is 1G."""
    max_requests: Quantity = 0
    """Most queued requests; 0 is 5000."""
    fairness_policy_ref: Name | None = None
    """Name of the policy between flows; global-strict-fairness-policy when absent."""
    ordering_policy_ref: Name | None = None
    """Name of the policy within a flow; fcfs-ordering-policy when absent."""
    min_share: float = Field(default=0.0, ge=0.0, le=0.9)
    """Part of the served tokens that the band gets while it has requests waiting."""
    max_wait: Seconds = 0.0
    """Longest wait of a request that is served; 0 is none."""


class BandSpec(BandTemplate):
    """A priority band."""

    priority: Priority


class ModelLimitSpec(Section):
    """A limit of one model's requests in flight."""

    model: Name
    max_requests: int = Field(ge=1)


class FlowControlSpec(Section):
    """Admission and the queue. Without the feature gate only the detector counts."""

    max_bytes: Quantity = 0
    """Most bytes of queued bodies in all bands; 0 is no limit."""
    max_requests: Quantity = 0
    """Most queued requests in all bands; 0 is no limit."""
    default_request_ttl: Seconds = Field(default=60.0, alias="defaultRequestTTL")
    """Longest wait in the queue; 0 is no limit."""
    no_endpoint_request_ttl: Seconds | None = Field(default=None, alias="noEndpointRequestTTL")
    """The same while the pool has no endpoint; defaultRequestTTL when absent."""
    default_priority_band: BandTemplate = BandTemplate()
    """Bands that are not listed."""
    default_negative_priority_band: BandTemplate | None = None
    """Bands below 0 that are not listed; defaultPriorityBand when absent."""
    priority_bands: tuple[BandSpec, ...] = Field(default=(), max_length=1000)
    usage_limit_policy_plugin_ref: Name | None = None
    """Name of the policy of ceilings; static-usage-limit-policy when absent."""
    saturation_detector: PluginRef | None = None
    trust_tenant_headers: bool = False
    """Whether the fairness id in a request's headers counts; otherwise all requests are of one tenant."""
    metrics_fail_open_after: Seconds = 5.0
    """Age of an endpoint's metrics from which its requests in flight alone tell its load."""
    enable_eviction: bool = False
    """Whether requests below 0 that were sent are ended for more important ones that wait."""
    model_limits: tuple[ModelLimitSpec, ...] = Field(default=(), max_length=1000)
    """Models with a limit of requests in flight, the incoming one included."""


class RequestHandlerSpec(Section):
    """How request bodies are read."""

    parsers: tuple[PluginRef, ...] = ()
    """In order; every parser that reads bodies when absent."""


class EndpointPickerConfig(Section):
    """The whole file."""

    api_version: Literal["llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1"] = API_VERSION
    kind: Literal["EndpointPickerConfig"] = KIND
    feature_gates: tuple[str, ...] = ()
    plugins: tuple[PluginSpec, ...] = ()
    scheduling_profiles: tuple[ProfileSpec, ...] = ()
    data_layer: DataLayerSpec = DataLayerSpec()
    flow_control: FlowControlSpec = FlowControlSpec()
    request_handler: RequestHandlerSpec = RequestHandlerSpec()
    parser: PluginRef | None = None
    """Deprecated place of requestHandler.parsers."""
    saturation_detector: PluginRef | None = None
    """Deprecated place of flowControl.saturationDetector."""
