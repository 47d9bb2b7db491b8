"""approx-prefix-cache-producer: how much of the prompt each candidate holds, by this picker's decisions."""

from typing import Any

from pydantic import Field, model_validator
from typing_extensions import override

from endpoint_picker.datalayer.prefix_index import (
    DEFAULT_CAPACITY,
    MAX_PROMPT_TOKENS,
    MIN_BLOCK_TOKENS,
    PrefixIndex,
)
from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.decision import Decision, Reservation
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import PREFIX_MATCH, Candidates
from endpoint_picker.scheduling.plugin import Follower, PluginParams, Pool, Producer


class PrefixParams(PluginParams):
    """Parameters of approx-prefix-cache-producer."""

    auto_tune: bool = True
    """Follow the block size and the block count that the servers report."""
    block_size_tokens: int = Field(default=16, gt=0)
    """Block size of servers that report none; never below 64 in effect."""
    block_size: int | None = Field(default=None, gt=0, deprecated="write blockSizeTokens")
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
        if isinstance(values, dict) and values.get("blockSize") is not None:
            if "blockSizeTokens" in values:
                raise ValueError("blockSize is the old name of blockSizeTokens; keep blockSizeTokens only")
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


class ApproxPrefixCacheProducer(Producer, Follower):
    """Matches the prompt's blocks against the pool's prefix index, and notes there where the prompt went."""

    __slots__ = ("_index", "_table", "params")
    type_name = "approx-prefix-cache-producer"
    params_type = PrefixParams
    produces = frozenset({PREFIX_MATCH})
    reads_prompt = True

    def __init__(self, params: PrefixParams) -> None:
        self.params = params
        self._index: PrefixIndex
        self._table: EndpointTable

    @override
    def attach(self, pool: Pool) -> None:
        """Set how the pool's index cuts and bounds; what it knows already stays."""
        self._index = pool.index
        self._table = pool.table
        self._index.configure(
            auto=self.params.auto_tune,
            block_tokens=self.params.block_size_tokens,
            max_tokens=self.params.max_tokens,
            capacity=self.params.lru_capacity_per_server,
        )

    @override
    def produce(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> None:
        """Write how many leading blocks of the prompt each candidate holds."""
        index = self._index
        # An earlier profile of the same decision has hashed the prompt already.
        chain = candidates.prefix_chain or index.hashes(request.model, request.prompt)
        candidates.prefix_chain = chain
        candidates.prompt_blocks = len(chain)
        candidates.block_tokens = index.block_tokens
        candidates.prefix_matched = index.match(chain, candidates.rows)

    @override
    def decided(self, request: InferenceRequest, candidates: Candidates, reservation: Reservation) -> None:
        """Note that the reserved endpoint is going to hold the prompt."""
        if candidates.prompt_blocks:
            reservation.prefix_chain = candidates.prefix_chain
            self._index.record(candidates.prefix_chain, reservation.row)

    @override
    def first_byte(self, decision: Decision, record: Record) -> None:
        """Note the prompt where it was computed, when another endpoint than the primary answered.

        The scheduler has pointed the reservation at the endpoint that answered, if that is known. The primary
        keeps the blocks that it was believed to hold before the decision.
        """
        reservation = decision.reservations[0]
        chain, reservation.prefix_chain = reservation.prefix_chain, ()
        if not chain or not record.served_by or record.served_by == decision.endpoint:
            return
        table = self._table
        picked = table.row_of(decision.endpoint)
        if picked is not None:
            self._index.discard(chain, picked, round(decision.prefix_hit * len(chain)))
        served = table.row_of(record.served_by)
        if served is not None:
            self._index.record(chain, served)
