"""precise-prefix-cache-producer: how much of the prompt each candidate holds, by the servers' own KV events.

The index of approx-prefix-cache-producer is kept beside it, and answers where the events cannot: for the
whole request when its tokens or its model are not known, for single servers when they have not told all that
they hold, or are silent.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from typing_extensions import override

from endpoint_picker.datalayer.kv_events import TOKEN_BYTES, extra_key, joined_extra
from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.decision import Decision, Reservation
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest, Tokens
from endpoint_picker.scheduling.candidates import PREFIX_MATCH, TOKENIZED_PROMPT, Candidates
from endpoint_picker.scheduling.plugin import Follower, Pool, Producer
from endpoint_picker.scheduling.producers.approx_prefix_cache import ApproxPrefixCacheProducer, PrefixParams
from endpoint_picker.scheduling.producers.precise_prefix_params import PrecisePrefixParams

PRECISE: Final = "precise"
#: Some servers by their events, the others by the approximate index.
MIXED: Final = "mixed"
#: All by the approximate index: no server's events can be relied on, or no event names the request's model.
NO_EVENTS: Final = "approximate: no events"
NO_MODEL: Final = "approximate: unknown model"

_NO_EXTRA: Final[Mapping[int, bytes]] = {}


class PrecisePrefixCacheProducer(Producer, Follower):
    """Matches the prompt's tokens against what servers told of their caches."""

    __slots__ = ("_approx", "_params", "_pool")
    type_name = "precise-prefix-cache-producer"
    params_type = PrecisePrefixParams
    consumes = frozenset({TOKENIZED_PROMPT})
    produces = frozenset({PREFIX_MATCH})
    reads_prompt = True
    attaches_when_idle = False

    def __init__(self, params: PrecisePrefixParams) -> None:
        self._params = params
        self._approx = ApproxPrefixCacheProducer(PrefixParams())
        self._pool: Pool

    @override
    def attach(self, pool: Pool) -> None:
        """Have the pool's servers followed, and the index bounded, by these parameters."""
        params = self._params
        self._pool = pool
        self._approx.attach(pool)
        indexer, processor = params.indexer_config, params.token_processor_config
        changed = pool.kv.configure(
            block_tokens=processor.block_size_tokens,
            seed=processor.hash_seed,
            max_entries=indexer.kv_block_index_config.most,
            weights={each.name.lower(): each.weight for each in indexer.kv_cache_backend_configs},
        )
        pool.kv.shows_metrics = indexer.kv_block_index_config.enable_metrics
        if changed:
            pool.kv_sources.use(None)  # keys made with another size or seed match nothing
        pool.kv_plan = params.kv_events_config.plan

    @override
    def produce(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> None:
        """Write how many leading blocks of the prompt each candidate holds, and by which index."""
        self._approx.produce(request, candidates, table)
        source = candidates.prefix_source = self._match(request, candidates)
        self._pool.kv.answers[source] += 1

    def _match(self, request: InferenceRequest, candidates: Candidates) -> str:
        tokens, kv, rows = request.tokens, self._pool.kv, candidates.rows
        if tokens is None or not tokens.ids:
            return f"approximate: no tokens ({'none' if tokens is None else tokens.reason})"
        now = self._pool.clock()
        trusted = kv.trusted(rows, now)
        if not trusted.any():
            return NO_EVENTS
        if not tokens.keys:
            root = kv.root_of(request.model)
            if root is None:
                return NO_MODEL
            tokens.keys = kv.keys(root, tokens.ids, extra_of(tokens, kv.block_tokens))
        matched = kv.match(tokens.keys, rows, now)
        if kv.shows_metrics and kv.on_lookup is not None:
            kv.on_lookup(self._pool.clock() - now)
        blocks, source = len(tokens.keys), PRECISE
        if not trusted.all():
            source = MIXED
            if candidates.prompt_blocks:
                part = candidates.prefix_matched / candidates.prompt_blocks
                matched = np.where(trusted, matched, np.maximum(matched, np.floor(part * blocks)))
        candidates.prefix_matched = matched
        candidates.prompt_blocks = blocks
        candidates.block_tokens = kv.block_tokens
        return source

    @override
    def decided(self, request: InferenceRequest, candidates: Candidates, reservation: Reservation) -> None:
        """Note that the reserved endpoint is going to hold the prompt."""
        self._approx.decided(request, candidates, reservation)
        tokens = request.tokens
        if tokens is None or not tokens.keys or not candidates.block_tokens:
            return
        kv, row = self._pool.kv, reservation.row
        at = int(np.searchsorted(candidates.rows, row))
        reservation.expects_events = bool(candidates.prefix_matched[at] < candidates.prompt_blocks)
        if self._params.speculative_indexing:
            kv.speculate(tokens.keys, row, self._pool.clock() + self._params.speculative_ttl)

    @override
    def first_byte(self, decision: Decision, record: Record) -> None:
        """Note that events of the prompt are due, and tell the approximate index who computed it."""
        if record.response_status < 400:
            for reservation in decision.reservations:
                if getattr(reservation, "expects_events", False):
                    self._pool.kv.expect(reservation.row, self._pool.clock())
        self._approx.first_byte(decision, record)


def extra_of(tokens: Tokens, block_tokens: int) -> Mapping[int, bytes]:
    """Return what the keys of the prompt's blocks depend on beside its tokens, by number of the block.

    The salt goes into the first block, an image's hash into every block that its tokens lie in.
    """
    if not tokens.salt and not tokens.media:
        return _NO_EXTRA
    blocks = len(tokens.ids) // (TOKEN_BYTES * block_tokens)
    keys: dict[int, list[bytes]] = {}
    if tokens.salt:
        keys[0] = [extra_key(tokens.salt)]
    for offset, length, name in tokens.media:
        last = min((offset + length - 1) // block_tokens, blocks - 1)
        for block in range(offset // block_tokens, last + 1):
            keys.setdefault(block, []).append(extra_key(name))
    return {block: joined_extra(names) for block, names in keys.items()}
