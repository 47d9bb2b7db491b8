"""The parameters of precise-prefix-cache-producer."""

import re
from typing import Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from cluster_client.durations import seconds
from endpoint_picker.datalayer.kv_index import (
    DEFAULT_BLOCK_TOKENS,
    ENTRY_BYTES,
    MAX_ENTRIES,
    MAX_SOURCE_ENTRIES,
)
from endpoint_picker.datalayer.kv_sources import MAX_RANKS, KvEventsPlan
from endpoint_picker.scheduling.plugin import PluginParams

_NO_EFFECT: Final = "it has no effect here"
_SIZE: Final = re.compile(r"(\d+)\s*([KMGT]i?B?|B?)", re.IGNORECASE)
_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY_UNITS: Final = {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def _labels(text: str) -> tuple[tuple[str, str], ...]:
    """Return the labels of "k=v,k=v". Raises ValueError."""
    pairs = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        key, found, value = part.partition("=")
        if not (key and found and value):
            msg = f'"{part}" is no label; write key=value'
            raise ValueError(msg)
        pairs.append((key.strip(), value.removeprefix("=").strip()))
    return tuple(pairs)


class TokenProcessorParams(PluginParams):
    """How prompts are cut into blocks and hashed."""

    block_size_tokens: int = Field(default=DEFAULT_BLOCK_TOKENS, gt=0, le=4096)
    """Tokens in a block until events show the engines' own size; a multiple of it is then taken over."""
    block_size: int | None = Field(default=None, gt=0, le=4096, deprecated="write blockSizeTokens")
    """Deprecated name of blockSizeTokens."""
    hash_seed: str = Field(default="", max_length=256)
    """Seed of the picker's own hashes; engines need not know it."""
    hash_algorithm: Literal["", "cbor-fnv", "xxh64"] = Field(default="", deprecated=_NO_EFFECT)
    """The picker's own hashes are xxh64 always."""

    @model_validator(mode="before")
    @classmethod
    def _take_the_old_name(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("blockSize") is not None:
            if "blockSizeTokens" in values:
                raise ValueError("blockSize is the old name of blockSizeTokens; keep blockSizeTokens only")
            return {**values, "blockSizeTokens": values["blockSize"]}
        return values


class InMemoryParams(PluginParams):
    """An index bounded by its number of blocks."""

    size: int = Field(default=MAX_ENTRIES, gt=0, le=1_000_000_000)
    """Most blocks of all servers together; each takes some 160 bytes."""
    pod_cache_size: int = Field(default=10, gt=0, deprecated=_NO_EFFECT)
    """Servers of a block are a bit set, which needs no bound."""


class CostAwareParams(PluginParams):
    """An index bounded by its memory."""

    size: int = Field(gt=0)
    """Most memory, such as 2GiB."""

    @field_validator("size", mode="before")
    @classmethod
    def _bytes(cls, value: object) -> object:
        found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
        if found is None:
            return value
        unit = found[2].upper().removesuffix("B")
        return int(found[1]) * (_BINARY_UNITS.get(unit) or _UNITS[unit])


class BlockIndexParams(PluginParams):
    """The index and its bound."""

    in_memory_config: InMemoryParams | None = None
    """Bound by blocks; the default."""
    cost_aware_memory_config: CostAwareParams | None = None
    """Bound by memory."""
    enable_metrics: bool = False
    """Show the metrics llm_d_epp_kv_cache_index_*."""
    metrics_logging_interval: float = Field(default=0.0, ge=0.0, deprecated="metrics are not logged")
    """Metrics are not logged."""

    _duration = field_validator("metrics_logging_interval", mode="before")(seconds)

    @model_validator(mode="after")
    def _one_bound(self) -> "BlockIndexParams":
        if self.in_memory_config is not None and self.cost_aware_memory_config is not None:
            raise ValueError("give one of inMemoryConfig and costAwareMemoryConfig")
        return self

    @property
    def most(self) -> int:
        """Return the most blocks of all servers together."""
        if self.cost_aware_memory_config is not None:
            return max(1, self.cost_aware_memory_config.size // ENTRY_BYTES)
        return (self.in_memory_config or InMemoryParams()).size


class BackendParams(PluginParams):
    """A tier of a server's cache."""

    name: str = Field(min_length=1, max_length=64)
    """The medium that events name, in lower case."""
    weight: float = Field(ge=0.0, le=1.0)
    """What a block on this tier counts."""


class IndexerParams(PluginParams):
    """The index."""

    kv_block_index_config: BlockIndexParams = BlockIndexParams()
    """The index and its bound."""
    kv_cache_backend_configs: tuple[BackendParams, ...] = Field(
        default=(BackendParams(name="gpu", weight=1.0), BackendParams(name="cpu", weight=0.8)), max_length=8
    )
    """Tiers; a block on one that is not listed counts 1."""


class PodDiscoveryParams(PluginParams):
    """Where servers publish."""

    pod_label_selector: str = Field(default="", max_length=1024)
    """Labels (k=v, comma-separated) of the servers that publish; all when absent."""
    pod_namespace: str = Field(default="", max_length=253, deprecated="the picker follows its pool's servers")
    """The picker follows its pool's servers."""
    socket_port: int = Field(default=5557, ge=1, le=65535)
    """Port of the events, plus a server's data-parallel rank."""
    replay_socket_port: int = Field(default=0, ge=0, le=65535)
    """Port for old messages, plus the rank; 0: a gap costs what is known of the server."""
    ranks: int = Field(default=1, ge=1, le=MAX_RANKS)
    """Data-parallel ranks behind each port of the pool, each with a publisher of its own."""

    @field_validator("pod_label_selector")
    @classmethod
    def _readable(cls, value: str) -> str:
        _labels(value)
        return value


class KvEventsParams(PluginParams):
    """The servers' events."""

    zmq_endpoint: str = Field(default="", max_length=256, pattern=r"^(tcp://.+:\d+)?$")
    """Address that engines connect to, such as tcp://*:5557; "" is none."""
    topic_filter: str = Field(default="kv@", max_length=256)
    """Beginning of the topics that are read."""
    concurrency: int = Field(default=4, gt=0, deprecated=_NO_EFFECT)
    """Events are applied one after the other."""
    engine_type: Literal["vllm", "sglang"] = Field(default="vllm", deprecated="both formats are read")
    """The formats of both engines are read."""
    discover_pods: bool = True
    """Ask every server of the pool for its events."""
    pod_discovery_config: PodDiscoveryParams = PodDiscoveryParams()
    """Where servers publish."""
    max_blocks_per_server: int = Field(default=MAX_SOURCE_ENTRIES, gt=0)
    """Most blocks that are kept of a server, or of one of its ranks."""

    @model_validator(mode="after")
    def _from_somewhere(self) -> "KvEventsParams":
        if not (self.discover_pods or self.zmq_endpoint):
            raise ValueError("with discoverPods: false, zmqEndpoint must say where the events come from")
        return self

    @property
    def plan(self) -> KvEventsPlan:
        """Return where the events come from."""
        at = self.pod_discovery_config
        return KvEventsPlan(
            discover=self.discover_pods,
            bind=self.zmq_endpoint,
            topic_filter=self.topic_filter,
            socket_port=at.socket_port,
            replay_port=at.replay_socket_port,
            ranks=at.ranks,
            selector=_labels(at.pod_label_selector),
            most_blocks=self.max_blocks_per_server,
        )


class PrecisePrefixParams(PluginParams):
    """Parameters of precise-prefix-cache-producer."""

    token_processor_config: TokenProcessorParams = TokenProcessorParams()
    """How prompts are cut into blocks and hashed."""
    indexer_config: IndexerParams = IndexerParams()
    """The index."""
    kv_events_config: KvEventsParams = KvEventsParams()
    """The servers' events."""
    speculative_indexing: bool = False
    """True counts the blocks of a prompt that was just sent to a server as held, before its events say so."""
    speculative_ttl: float = Field(default=2.0, gt=0.0, le=60.0, alias="speculativeTTL")
    """For how long; events take over within it."""

    _duration = field_validator("speculative_ttl", mode="before")(seconds)
