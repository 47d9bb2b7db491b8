"""One endpoint of a simulated pool: an engine in virtual time, and the faults that act on it. Pure."""

import dataclasses
import random
from typing import Final

from endpoint_picker.datalayer.metrics_page import Reading
from endpoint_picker.datalayer.table import Endpoint
from model_server_sim.engine import Engine, Request, Sequence
from model_server_sim.params import EngineParams

PORT: Final = 8000
_TIMES: Final = ("iteration_s", "prefill_token_s", "decode_sequence_s", "context_token_s")


class Progress:
    """What an engine has done since it was last asked."""

    __slots__ = ("answering", "ended", "next_due")

    def __init__(self) -> None:
        self.answering: list[Sequence] = []
        """Sequences that gave their first token."""
        self.ended: list[Sequence] = []
        """Sequences that gave their last token; those of one token are in both lists."""
        self.next_due: float | None = None
        """When to ask again; None: not before the next request."""


class SimulatedServer:
    """An engine that can die, come back without its cache, slow down, or show metrics that no longer move."""

    __slots__ = (
        "_frozen",
        "_seed",
        "address",
        "due",
        "engine",
        "in_pool",
        "incarnation",
        "is_up",
        "live",
        "number",
        "params",
        "slowness",
    )

    def __init__(self, number: int, params: EngineParams, seed: str) -> None:
        self.number = number
        self.params = params
        self.address = f"10.{number >> 16}.{(number >> 8) & 255}.{number & 255}"
        self.incarnation = 0
        """How often it was started anew."""
        self.is_up = True
        """It accepts connections."""
        self.in_pool = True
        """Discovery lists it as ready."""
        self.due: float | None = None
        """When `advance` is to be called next, as of its last call; None: not before the next request."""
        self.live: dict[str, Sequence] = {}
        """Requests in the engine by id, in order of arrival."""
        self.slowness = 1.0
        """Iterations take this many times as long as `params` say."""
        self._seed = seed
        self._frozen: Reading | None = None
        self.engine = self._new_engine()

    @property
    def hostport(self) -> str:
        """Return "ip:port"."""
        return f"{self.address}:{PORT}"

    def endpoint(self) -> Endpoint:
        """Return what discovery says of it."""
        return Endpoint(
            f"server-{self.number}-rank-0",
            "default",
            self.address,
            PORT,
            ready=self.in_pool,
            incarnation=str(self.incarnation),
        )

    def submit(self, request: Request, now: float) -> Sequence:
        """Queue a request; call `advance` next. Raises ValueError as `Engine.submit` does."""
        sequence = self.live[request.request_id] = self.engine.submit(request, now)
        return sequence

    def abort(self, request_id: str) -> None:
        """Drop a request; call `advance` next."""
        self.engine.abort(request_id)
        self.live.pop(request_id, None)

    def advance(self, now: float) -> Progress:
        """Run the engine up to `now`."""
        progress = Progress()
        engine = self.engine
        while True:
            step = engine.step(now)
            for event in step.events:
                sequence = event.sequence
                if sequence.generated == 1:
                    progress.answering.append(sequence)
                if sequence.finished:
                    progress.ended.append(sequence)
                    del self.live[sequence.request.request_id]
            if step.next_time is None or step.next_time > now:
                self.due = progress.next_due = step.next_time
                return progress

    def reading(self) -> Reading:
        """Return what its metrics page shows now."""
        if self._frozen is not None:
            return self._frozen
        engine, params = self.engine, self.params
        return Reading(
            engine.waiting, engine.running, engine.kv_cache_usage, params.block_size, params.num_gpu_blocks
        )

    def freeze_metrics(self) -> None:
        """Show the present values from now on, whatever happens."""
        self._frozen = self.reading()

    def thaw_metrics(self) -> None:
        """Show true values again."""
        self._frozen = None

    def slow_down(self, slowness: float) -> None:
        """Take `slowness` times as long for every iteration that begins from now on; 1.0 is as built."""
        self.slowness = slowness
        self.engine.params = self._speed()

    def die(self) -> None:
        """Refuse connections and lose every request and the cache."""
        self.is_up = False
        self.due = None
        self._frozen = None
        self.incarnation += 1
        self.live = {}
        self.engine = self._new_engine()

    def come_back(self) -> None:
        """Accept connections again, with an empty cache."""
        self.is_up = True

    def _new_engine(self) -> Engine:
        jitter = random.Random(f"{self._seed}/{self.number}/{self.incarnation}").random  # noqa: S311
        return Engine(self._speed(), jitter)

    def _speed(self) -> EngineParams:
        if self.slowness == 1.0:
            return self.params
        return dataclasses.replace(
            self.params, **{name: getattr(self.params, name) * self.slowness for name in _TIMES}
        )
