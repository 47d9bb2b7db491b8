"""Plugins that only carry settings for parts that are built in. They do nothing themselves."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from endpoint_picker.datalayer.prefix_index import DEFAULT_CAPACITY, MAX_PROMPT_TOKENS, MIN_BLOCK_TOKENS
from endpoint_picker.scheduling.plugin import Plugin, PluginParams


class PrefixParams(PluginParams):
    """Parameters of approx-prefix-cache-producer."""

    auto_tune: bool = True
    """Follow the block size and the block count that the servers report."""
    block_size_tokens: int = Field(default=16, gt=0)
    """Block size of servers that report none; never below 64 in effect."""
    block_size: int | None = Field(default=None, gt=0)
    """Deprecated name of blockSizeTokens."""
    max_prefix_tokens_to_match: int = Field(default=MAX_PROMPT_TOKENS, ge=0)
    """Longest part of a prompt that is matched; 0 leaves it to maxPrefixBlocksToMatch."""
    max_prefix_blocks_to_match: int = Field(default=2048, ge=0)
    """The same in blocks; 0 is the built-in limit."""
    lru_capacity_per_server: int = Field(default=DEFAULT_CAPACITY, gt=0)
    """Blocks remembered of a server that does not report how many it has."""

    @model_validator(mode="before")
    @classmethod
    def _take_the_old_name(cls, values: Any) -> Any:
        if isinstance(values, dict) and "blockSize" in values and "blockSizeTokens" not in values:
            return {**values, "blockSizeTokens": values["blockSize"]}
        return values

    @property
    def max_tokens(self) -> int:
        """Return the longest part of a prompt that is matched, in tokens."""
        if self.max_prefix_tokens_to_match:
            return min(self.max_prefix_tokens_to_match, MAX_PROMPT_TOKENS)
        if self.max_prefix_blocks_to_match:
            block = max(self.block_size_tokens, MIN_BLOCK_TOKENS)
            return min(self.max_prefix_blocks_to_match * block, MAX_PROMPT_TOKENS)
        return MAX_PROMPT_TOKENS


class ApproxPrefixCacheProducer(Plugin):
    """approx-prefix-cache-producer: how the prefix index cuts and bounds."""

    __slots__ = ("params",)
    type_name = "approx-prefix-cache-producer"
    params_type = PrefixParams

    def __init__(self, params: PrefixParams) -> None:
        self.params = params


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


class SingleProfileHandler(Plugin):
    """single-profile-handler: says that the one profile is used, which it always is."""

    __slots__ = ()
    type_name = "single-profile-handler"
