"""One endpoint of a simulated pool: an engine in virtual time, and the faults that act on it. Pure."""

import random
from collections.abc import Mapping
from typing import Final

from endpoint_picker.datalayer.adapters import AdapterReading
from endpoint_picker.datalayer.metrics_page import Reading
from endpoint_picker.datalayer.table import Endpoint
from model_server_sim.engine import Engine, Progress, Request, Sequence
from model_server_sim.params import EngineParams

PORT: Final = 8000


class SimulatedServer:
    """An engine that can die, come back without its cache, slow down, or show metrics that no longer move."""

    __slots__ = (
        "_frozen",
        "_has_adapters",
        "_seed",
        "address",
        "due",
        "engine",
        "in_pool",
        "incarnation",
        "is_up",
        "labels",
        "live",
        "number",
        "params",
        "shows_metrics",
        "slowness",
    )

    def __init__(
        self, number: int, params: EngineParams, seed: str, labels: Mapping[str, str] | None = None
    ) -> None:
        self.number = number
        self.params = params
        self.labels = labels or {}
        """Of its pod."""
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
        self.shows_metrics = True
        """Its metrics page comes when it is up."""
        self._seed = seed
        self._frozen: Reading | None = None
        self._has_adapters = False
        """A request for an adapter has come: the page shows the slots from then on."""
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
            self.labels,
            ready=self.in_pool,
            incarnation=str(self.incarnation),
        )

    def submit(self, request: Request, now: float) -> Sequence:
        """Queue a request; call `advance` next. Raises ValueError as `Engine.submit` does."""
        if request.adapter:
            self._has_adapters = True
        sequence = self.live[request.request_id] = self.engine.submit(request, now)
        return sequence

    def abort(self, request_id: str) -> None:
        """Drop a request; call `advance` next."""
        self.engine.abort(request_id)
        self.live.pop(request_id, None)

    def release(self, request_id: str) -> None:
        """Free the blocks that a prompt computed for another server holds; call `advance` next."""
        self.engine.release(request_id)

    def advance(self, now: float) -> Progress:
        """Run the engine up to `now`; return the first and last tokens since the last call."""
        progress = self.engine.advance(now)
        for sequence in progress.finished:
            del self.live[sequence.request.request_id]
        self.due = progress.next_due
        return progress

    def settle(self, now: float) -> None:
        """Bring tokens and cache usage up to `now`; first and last tokens stay for `advance`."""
        if self.due is not None and self.due > now:
            self.engine.advance(now)

    def reading(self, now: float) -> Reading | None:
        """Return what its metrics page shows now; None when no page comes."""
        if self._frozen is not None or not self.shows_metrics:
            return self._frozen
        self.settle(now)
        engine, params = self.engine, self.params
        adapters = None
        if self._has_adapters:
            running, waiting = engine.running_adapters(), engine.waiting_adapters()
            adapters = AdapterReading(frozenset(running), frozenset(waiting), params.max_loras)
        return Reading(
            engine.waiting,
            engine.running,
            engine.kv_cache_usage,
            params.block_size,
            params.num_gpu_blocks,
            adapters=adapters,
        )

    def freeze_metrics(self, now: float, *, answers: bool = True) -> None:
        """Show the present values from now on, whatever happens; or no page, unless `answers`."""
        self._frozen = self.reading(now) if answers else None
        self.shows_metrics = answers

    def thaw_metrics(self) -> None:
        """Show true values again."""
        self._frozen = None
        self.shows_metrics = True

    def slow_down(self, slowness: float) -> None:
        """Take `slowness` times as long for every iteration that begins from now on; call `advance` next."""
        self.slowness = slowness
        self.engine.set_speed(1 / slowness)

    def die(self) -> None:
        """Refuse connections and lose every request and the cache."""
        self.is_up = False
        self.due = None
        self.thaw_metrics()
        self._has_adapters = False
        self.incarnation += 1
        self.live = {}
        self.engine = self._new_engine()

    def come_back(self) -> None:
        """Accept connections again, with an empty cache."""
        self.is_up = True

    def _new_engine(self) -> Engine:
        jitter = random.Random(f"{self._seed}/{self.number}/{self.incarnation}").random  # noqa: S311
        engine = Engine(self.params, jitter)
        engine.set_speed(1 / self.slowness)
        return engine
