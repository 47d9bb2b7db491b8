"""A producer of prefix matches that reads the engines' caches, as KV-cache events without delay would tell.

The scorers stay the picker's own. It counts in the engines' blocks, the picker's approximate index in blocks
of at least 64 tokens.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.decision import Decision, Reservation
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import PREFIX_MATCH, Candidates
from endpoint_picker.scheduling.plugin import Follower, Plugin, Pool, Producer
from pool_simulation.picker_policy import PolicyRequest
from pool_simulation.policy import Surroundings
from pool_simulation.prompts import block_hashes

TYPE_NAME: Final = "simulated-precise-prefix-producer"


def precise_prefix_producer(pool: Surroundings, *, counts_routed: bool) -> type[Plugin]:
    """Return the producer's class for the servers of one run.

    With `counts_routed` a server also counts as holding the prompts that were sent to it and are not computed
    yet; without, requests for a new prefix spread until the first of them has been computed.
    """
    servers = {server.hostport: server for server in pool.servers}

    class PrecisePrefixProducer(Producer, Follower):
        __slots__ = ("_routed", "_table")
        type_name = TYPE_NAME
        produces = frozenset({PREFIX_MATCH})

        @override
        def attach(self, pool: Pool) -> None:
            self._table = pool.table
            self._routed: dict[str, dict[int, int]] = {}
            """Server to the blocks of prompts on their way, each with the number of these prompts."""

        @override
        def produce(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> None:
            if not isinstance(request, PolicyRequest):
                return
            rows = candidates.rows.tolist()
            block_size = servers[table.hostports[rows[0]]].params.block_size
            blocks = request.simulated.prompt_tokens // block_size
            hashes = block_hashes(request.simulated, block_size)[:blocks]
            matched = []
            for row in rows:
                hostport = table.hostports[row]
                found = servers[hostport].engine.pool.match(hashes, blocks)
                routed = self._routed.get(hostport)
                if routed:
                    while found < blocks and hashes[found] in routed:
                        found += 1
                matched.append(float(found))
            candidates.prefix_matched = np.array(matched)
            candidates.prompt_blocks = blocks
            candidates.block_tokens = block_size
            candidates.prefix_chain = hashes

        if counts_routed:

            @override
            def decided(
                self, request: InferenceRequest, candidates: Candidates, reservation: Reservation
            ) -> None:
                chain = reservation.prefix_chain = candidates.prefix_chain
                hostport = self._table.hostports[reservation.row]
                routed = self._routed.setdefault(hostport, {})
                for name in chain:
                    routed[name] = routed.get(name, 0) + 1

            @override
            def first_byte(self, decision: Decision, record: Record) -> None:
                self._computed(decision)

            @override
            def ended(self, decision: Decision, record: Record) -> None:
                self._computed(decision)

        def _computed(self, decision: Decision) -> None:
            for reservation in decision.reservations:
                chain: Sequence[int] = reservation.prefix_chain
                reservation.prefix_chain = ()
                routed = self._routed.get(decision.endpoint, {})
                for name in chain:
                    left = routed.get(name, 0) - 1
                    if left > 0:
                        routed[name] = left
                    else:
                        routed.pop(name, None)

    return PrecisePrefixProducer
