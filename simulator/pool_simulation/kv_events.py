"""Brings the simulated engines' KV events to a picker in vLLM's format: its decoder, streams and index run.

A message is on its way for `delay_s`. It is not lost, and a picker that starts anew gets no replay of what
was sent before.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from struct import unpack
from typing import Final

from endpoint_picker.datalayer.kv_sources import KvSource
from endpoint_picker.datalayer.prefix_index import BYTES_PER_TOKEN
from endpoint_picker.routing import PoolRouter
from model_server_sim import kv_events
from model_server_sim.blocks import Change, Stored
from model_server_sim.engine import Engine
from pool_simulation.policy import Surroundings
from pool_simulation.prompts import prompt_bytes
from pool_simulation.workload import Segment, SimulatedRequest

#: Requests whose tokens can be told: those of an engine's blocks are at most some thousand requests old.
REMEMBERED: Final = 20_000
#: It names no model: what is no adapter is the base model.
TOPIC: Final = b"kv@server"


class EngineEvents:
    """The publishers of all servers, read every `delay_s` while `is_wanted`."""

    def __init__(
        self, pool: Surroundings, router: PoolRouter, delay_s: float, is_wanted: Callable[[], bool]
    ) -> None:
        self._pool = pool
        self._router = router
        self._delay_s = delay_s
        self._is_wanted = is_wanted
        self._requests: OrderedDict[str, SimulatedRequest] = OrderedDict()
        self._sent: dict[int, tuple[Engine, int]] = {}
        """Server to its engine, and the number of its next message."""
        self._tick()

    def note(self, request: SimulatedRequest) -> None:
        """Note a request that a server may get."""
        self._requests[request.request_id] = request
        if len(self._requests) > REMEMBERED:
            self._requests.popitem(last=False)

    def _tick(self) -> None:
        if not self._is_wanted():
            return
        sources: dict[str, KvSource] = {each.endpoint.hostport: each for each in self._router.pool.kv_sources}
        for server in self._pool.servers:
            engine, source = server.engine, sources.get(server.hostport)
            known, number = self._sent.get(server.number, (engine, 0))
            if known is not engine:
                number = 0
            changes, engine.pool.journal = engine.pool.journal, []
            if source is not None and server.is_up and (changes is None or changes):
                # An engine that has told nothing yet begins with an empty message: what it holds is known.
                told = [self._with_tokens(each) for each in changes or ()]
                now = self._pool.clock.now
                payload = kv_events.batch(told, 1.0 + now, 0, server.params.block_size)
                source.received(TOPIC, kv_events.sequence_number(number), payload, now)
                number += 1
            self._sent[server.number] = engine, number
        self._router.pool.kv.sweep(1 << 20)
        self._pool.at(self._pool.clock.now + self._delay_s, self._tick)

    def _with_tokens(self, change: Change) -> Change:
        if not isinstance(change, Stored):
            return change
        request = self._requests.get(change.request.request_id)
        if request is None:
            return change
        said = prompt_bytes((*request.prompt, Segment(request.output_segment, request.output_tokens)))
        ids = unpack(f"<{len(said) // BYTES_PER_TOKEN}I", said)
        return change._replace(request=replace(change.request, token_ids=ids))
