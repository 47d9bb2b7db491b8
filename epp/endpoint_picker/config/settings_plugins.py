"""Plugins that only carry settings of built-in parts; `build` reads their parameters."""

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator
from typing_extensions import override

from cluster_client.durations import seconds
from endpoint_picker.datalayer.metrics_page import ENGINES, HIT_RATE, Engine, Gauge, Series
from endpoint_picker.scheduling.plugin import Plugin, PluginParams

FilePath = Annotated[str, Field(max_length=4096, pattern=r"^(/[^\x00]*)?$")]
"""Absolute path of a file, "" for none."""


#: Bounds of a source's interval, seconds. Metrics expire after `table.STALE_AFTER_S`; one scrape may fail.
MIN_INTERVAL_S: Final = 0.05
MAX_INTERVAL_S: Final = 1.0


def optional_seconds(value: object) -> object:
    """Return the duration in seconds; None stays None."""
    return None if value is None else seconds(value)


class SourceParams(PluginParams):
    """Parameters of metrics-data-source."""

    scheme: Literal["http", "https"] = "http"
    """How the metrics are fetched."""
    path: Annotated[str, Field(pattern=r"^/[!-~]*$", max_length=1024)] = "/metrics"
    """Path of the metrics page."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """Port of the page; the endpoint's own when absent."""
    interval: float | None = Field(default=None, ge=MIN_INTERVAL_S, le=MAX_INTERVAL_S)
    """Time between two scrapes of an endpoint, 50ms to 1s; that of --refresh-metrics-interval when absent."""
    insecure_skip_verify: bool = False
    """With https: take any certificate."""
    ca_cert_path: FilePath = ""
    """PEM file that servers' certificates are verified with; https needs it, or insecureSkipVerify."""
    client_cert_path: FilePath = ""
    """PEM certificate that servers are shown."""
    client_key_path: FilePath = ""
    """Its key; in the certificate's file when absent."""
    server_name: str = Field(default="", max_length=253, pattern=r"^[A-Za-z0-9.:-]*$")
    """Name that servers' certificates bear; the endpoint's address when absent."""
    bearer_token_file: FilePath = ""
    """File whose token goes along; it is read again when it changes."""

    _duration = field_validator("interval", mode="before")(optional_seconds)

    @model_validator(mode="after")
    def _consistent(self) -> "SourceParams":
        if self.scheme == "http":
            given = {
                "caCertPath": self.ca_cert_path,
                "clientCertPath": self.client_cert_path,
                "clientKeyPath": self.client_key_path,
                "serverName": self.server_name,
                "bearerTokenFile": self.bearer_token_file,
            }
            for name, value in given.items():
                if value:
                    msg = f"{name} needs scheme https"
                    raise ValueError(msg)
        elif self.insecure_skip_verify == bool(self.ca_cert_path):
            raise ValueError("scheme https needs either caCertPath or insecureSkipVerify: true")
        elif self.bearer_token_file and self.insecure_skip_verify:
            raise ValueError("bearerTokenFile needs caCertPath: a token does not go to a server unverified")
        if self.client_key_path and not self.client_cert_path:
            raise ValueError("clientKeyPath needs clientCertPath")
        if self.server_name and self.insecure_skip_verify:
            raise ValueError("serverName does nothing with insecureSkipVerify")
        return self


class MetricsDataSource(Plugin):
    """metrics-data-source: where a server's metrics page is, and how it is asked for."""

    __slots__ = ("params",)
    type_name = "metrics-data-source"
    params_type = SourceParams

    def __init__(self, params: SourceParams) -> None:
        self.params = params


class EndpointNotificationSource(Plugin):
    """endpoint-notification-source: taken so that configurations load; plugins follow endpoints anyway."""

    __slots__ = ()
    type_name = "endpoint-notification-source"


class DcgmSourceParams(SourceParams):
    """Parameters of dcgm-data-source."""

    port: int | None = Field(default=9400, ge=1, le=65535)
    """Port of the exporter."""
    interval: float | None = Field(default=1.0, ge=MIN_INTERVAL_S, le=MAX_INTERVAL_S)
    """Time between two scrapes, 50ms to 1s."""
    use_node_address: bool = False
    """True asks the exporter at the address of the pod's node, false at the pod's own."""


class DcgmDataSource(Plugin):
    """dcgm-data-source: where NVIDIA's DCGM exporter is that measures an endpoint's GPUs."""

    __slots__ = ("params",)
    type_name = "dcgm-data-source"
    params_type = DcgmSourceParams

    def __init__(self, params: DcgmSourceParams) -> None:
        self.params = params


class DcgmExtractor(Plugin):
    """dcgm-extractor: attribute GPUUtilization, the largest DCGM_FI_DEV_GPU_UTIL of the page over 100."""

    __slots__ = ()
    type_name = "dcgm-extractor"

    @property
    @override
    def endpoint_attributes(self) -> frozenset[str]:
        """Return GPUUtilization."""
        return frozenset({GPU_UTILIZATION[0]})


#: (attribute, gauge, scale): the exporter shows percent.
GPU_UTILIZATION: Final = ("GPUUtilization", Series("DCGM_FI_DEV_GPU_UTIL"), 0.01)


_NAME: Final = r"[A-Za-z_:][A-Za-z0-9_:]*"
_SPEC: Final = re.compile(rf"\s*({_NAME})\s*(?:\{{(.*)\}})?\s*")
_LABEL: Final = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*("?)([^",{}\\\n]*)\2\s*')


def series_of(spec: str) -> Series:
    """Return the series that "name" or "name{label=value,...}" names. Raises ValueError."""
    found = _SPEC.fullmatch(spec)
    if found is None:
        msg = f'"{spec}" is no metric; write name or name{{label=value,...}}'
        raise ValueError(msg)
    name, inside = found.groups()
    labels = []
    for part in inside.split(",") if inside and inside.strip() else ():
        pair = _LABEL.fullmatch(part)
        if pair is None:
            msg = f'"{part.strip()}" is no label; write label=value'
            raise ValueError(msg)
        labels.append((pair[1], pair[3].rstrip()))
    return Series(name, tuple(labels))


def _checked(spec: str) -> str:
    if spec:
        series_of(spec)
    return spec


Spec = Annotated[str, Field(max_length=1024), AfterValidator(_checked)]
"""A metric, "name" or "name{label=value,...}"; "" when the engine does not show it."""


class CustomMetric(PluginParams):
    """An attribute of endpoints, read from their metrics pages."""

    attribute_key: str = Field(min_length=1, max_length=253)
    """Name by which the endpoint-attribute plugins refer to it."""
    metric_spec: Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_checked)]
    """Gauge with its value, name or name{label=value,...}; of several samples the mean."""


class EngineConfig(PluginParams):
    """Where an engine shows its load; in place of the built-in engine of the same name, if there is one."""

    name: str = Field(min_length=1, max_length=63)
    """Value of the pods' engine label."""
    queued_requests_spec: Spec = ""
    """Gauge of the waiting requests."""
    running_requests_spec: Spec = ""
    """Gauge of the running requests."""
    kv_usage_spec: Spec = ""
    """Fraction of the KV cache in use, 1 is full."""
    cache_info_spec: Spec = ""
    """Info metric whose labels hold block size and block count."""
    cache_block_size_label_name: str = Field(default="block_size", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Label of cacheInfoSpec with the tokens of a block."""
    cache_num_blocks_label_name: str = Field(default="num_gpu_blocks", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Label of cacheInfoSpec with the number of blocks."""
    cache_block_size_spec: Spec = ""
    """Gauge of the block size, for engines without an info metric."""
    cache_num_blocks_spec: Spec = ""
    """Gauge of the number of blocks, likewise."""
    lora_spec: Spec = ""
    """Info metric with the labels running_lora_adapters, waiting_lora_adapters and max_lora."""
    custom_metrics: tuple[CustomMetric, ...] = Field(default=(), max_length=32)
    """Further gauges, each an attribute of the endpoint."""

    @model_validator(mode="after")
    def _shows_load(self) -> "EngineConfig":
        if not (self.queued_requests_spec or self.running_requests_spec or self.kv_usage_spec):
            raise ValueError("give queuedRequestsSpec, runningRequestsSpec or kvUsageSpec")
        if self.cache_info_spec and (self.cache_block_size_spec or self.cache_num_blocks_spec):
            raise ValueError("give cacheInfoSpec, or cacheBlockSizeSpec and cacheNumBlocksSpec, not both")
        keys = [each.attribute_key for each in self.custom_metrics]
        if len(set(keys)) < len(keys):
            raise ValueError("two customMetrics have one attributeKey")
        return self

    @property
    def engine(self) -> Engine:
        """Return the engine as pages are read for it."""
        return Engine(
            waiting=_gauge(self.queued_requests_spec),
            running=_gauge(self.running_requests_spec),
            kv_usage=_gauge(self.kv_usage_spec),
            cache_info=series_of(self.cache_info_spec) if self.cache_info_spec else None,
            block_label=self.cache_block_size_label_name,
            count_label=self.cache_num_blocks_label_name,
            block_size=_gauge(self.cache_block_size_spec),
            num_blocks=_gauge(self.cache_num_blocks_spec),
            lora=series_of(self.lora_spec) if self.lora_spec else None,
            attributes=tuple(
                (each.attribute_key, series_of(each.metric_spec)) for each in self.custom_metrics
            ),
        )


def _gauge(spec: str) -> Gauge:
    return (series_of(spec),) if spec else ()


class ExtractorParams(PluginParams):
    """Parameters of core-metrics-extractor."""

    engine_label_key: str = Field(default="llm-d.ai/engine-type", min_length=1)
    """Pod label that names the engine."""
    default_engine: str = "vllm"
    """Engine of a pod without the label, or with a value that is not known."""
    cache_hit_rate: bool = False
    """True reads the hit rate of servers' prefix caches into the attribute KVCacheHitRate, [0, 1]."""
    engine_configs: tuple[EngineConfig, ...] = Field(default=(), max_length=32)
    """Further engines, and others in place of built-in ones."""

    @model_validator(mode="after")
    def _known_default(self) -> "ExtractorParams":
        names = [each.name for each in self.engine_configs]
        if len(set(names)) < len(names):
            raise ValueError("two engineConfigs have one name")
        if self.default_engine not in self.engines:
            msg = f'no engine is named "{self.default_engine}"; known: {", ".join(sorted(self.engines))}'
            raise ValueError(msg)
        return self

    @property
    def engines(self) -> Mapping[str, Engine]:
        """Return all engines by name."""
        return {**ENGINES, **{each.name: each.engine for each in self.engine_configs}}


class CoreMetricsExtractor(Plugin):
    """core-metrics-extractor: which series of the page are read."""

    __slots__ = ("params",)
    type_name = "core-metrics-extractor"
    params_type = ExtractorParams

    def __init__(self, params: ExtractorParams) -> None:
        self.params = params

    @property
    @override
    def endpoint_attributes(self) -> frozenset[str]:
        """Return the keys of all customMetrics, and KVCacheHitRate where `cacheHitRate` is set."""
        engines = self.params.engine_configs
        return frozenset(
            {
                *((HIT_RATE,) if self.params.cache_hit_rate else ()),
                *(metric.attribute_key for each in engines for metric in each.custom_metrics),
            }
        )
