"""The shape of an EndpointPickerConfig: strict, so that a misspelt key is an error and not a silent default.

Sections that this version does not act on are not in the shape, so they are refused with their path.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

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


class FlowControlSpec(Section):
    """Admission."""

    saturation_detector: PluginRef | None = None


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
