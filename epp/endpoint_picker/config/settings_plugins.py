"""Plugins that only carry settings for parts that are built in. They do nothing themselves."""

from typing import Annotated, Literal

from pydantic import Field

from endpoint_picker.scheduling.plugin import Plugin, PluginParams


class SourceParams(PluginParams):
    """Parameters of metrics-data-source."""

    scheme: Literal["http"] = "http"
    path: Annotated[str, Field(pattern=r"^/[!-~]*$", max_length=1024)] = "/metrics"


class MetricsDataSource(Plugin):
    """metrics-data-source: where a server's metrics page is, on the endpoint's own port."""

    __slots__ = ("params",)
    type_name = "metrics-data-source"
    params_type = SourceParams

    def __init__(self, params: SourceParams) -> None:
        self.params = params


class ExtractorParams(PluginParams):
    """Parameters of core-metrics-extractor."""

    engine_label_key: str = Field(default="llm-d.ai/engine-type", min_length=1)
    """Pod label that names the engine."""
    default_engine: Literal["vllm", "sglang", "trtllm-serve", "triton-tensorrt-llm", "triton"] = "vllm"
    """Engine of a pod without the label, or with a value that is not known."""


class CoreMetricsExtractor(Plugin):
    """core-metrics-extractor: which series of the page are read."""

    __slots__ = ("params",)
    type_name = "core-metrics-extractor"
    params_type = ExtractorParams

    def __init__(self, params: ExtractorParams) -> None:
        self.params = params
