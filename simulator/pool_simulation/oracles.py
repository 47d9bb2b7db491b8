"""Policies that know what no picker can: each engine's exact state, the true output lengths, the next tokens.

Each runs the engines ahead and takes the server that is best by one measure. None is optimal: a server is
chosen for one request at a time, without knowledge of later arrivals. The oracle of a figure is the best of
them, and of all other policies, in that figure.
"""

from bisect import insort
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final

from typing_extensions import override

from endpoint_picker.config.registry import Registry
from pool_simulation.lookahead import Decoding, Expected, Prompt, look_ahead
from pool_simulation.policies import Make
from pool_simulation.policy import Pick, Policy, Refused, Resume, Surroundings
from pool_simulation.prompts import block_hashes
from pool_simulation.server import SimulatedServer
from pool_simulation.workload import SimulatedRequest


class _Batch:
    """What an oracle knows of the requests on one server."""

    __slots__ = ("decoding", "entries", "queued", "server")

    def __init__(self, server: SimulatedServer) -> None:
        self.server = server
        self.queued: dict[str, SimulatedRequest] = {}
        """Requests without a first token, in order of arrival."""
        self.decoding: list[Decoding] = []
        """Sorted; `entries` has the request of each by its entry here."""
        self.entries: dict[str, Decoding] = {}

    def answering(self, request: SimulatedRequest) -> None:
        del self.queued[request.request_id]
        tick = self.server.engine.counters.iterations
        entry = Decoding(tick + request.output_tokens - 1, request.prompt_tokens + 1 - tick)
        self.entries[request.request_id] = entry
        insort(self.decoding, entry)

    def ended(self, request: SimulatedRequest) -> None:
        self.queued.pop(request.request_id, None)
        entry = self.entries.pop(request.request_id, None)
        if entry is not None:
            self.decoding.remove(entry)


class Prospect:
    """What one server would make of a request. Times in seconds; each measure is computed when asked for."""

    def __init__(self, batch: _Batch, request: SimulatedRequest, hashes: tuple[int, ...], now: float) -> None:
        """`hashes` names the request's blocks in the server's block size."""
        self._batch = batch
        self._hashes = hashes
        self._request = request
        self._now = now
        server = self.server = batch.server
        server.settle(now)
        self._free_tokens = server.engine.pool.available * server.params.block_size

    @cached_property
    def uncached(self) -> int:
        """Return the prompt tokens that the server would compute."""
        tokens = self._request.prompt_tokens
        return tokens - _cached(self.server, self._hashes, tokens)

    @cached_property
    def _prompts(self) -> tuple[float, list[Prompt]]:
        """Return when the next batch can begin, and the prompts without a first token."""
        server, begin = self.server, self._now
        prompts: list[Prompt] = []
        for request_id in self._batch.queued:
            sequence = server.live[request_id]
            asked = sequence.request
            if sequence.started_at is None:
                cached = _cached(server, asked.block_hashes, asked.prompt_tokens)
            else:
                cached = sequence.cached_tokens
                if server.due is not None:  # its iteration runs; the next can begin when that ends
                    begin = max(begin, server.due)
            prompts.append(Prompt(asked.prompt_tokens - cached, asked.prompt_tokens, asked.output_tokens))
        return begin, prompts

    def _look(self, more: list[Prompt]) -> Expected:
        server = self.server
        begin, prompts = self._prompts
        tick = server.engine.counters.iterations
        # A preempted request has fewer tokens than its ticks say: let it end next.
        decoding = self._batch.decoding
        if decoding and decoding[0].end <= tick:
            decoding = sorted(Decoding(max(end, tick + 1), offset) for end, offset in decoding)
        return look_ahead(
            server.params, begin, tick, decoding, prompts + more, self._free_tokens, server.slowness
        )

    @cached_property
    def _before(self) -> Expected:
        return self._look([])

    @cached_property
    def _after(self) -> Expected:
        request = self._request
        return self._look([Prompt(self.uncached, request.prompt_tokens, request.output_tokens)])

    @property
    def ttft_s(self) -> float:
        """Return the request's time to first token."""
        return self._after.first[-1] - self._now

    @property
    def e2e_s(self) -> float:
        """Return the request's time to its last token."""
        return self._after.last[-1] - self._now

    @property
    def added_s(self) -> float:
        """Return by how much the sum of all last tokens' times grows, this request's own included."""
        return self._after.sum_of_last() - self._before.sum_of_last() - self._now

    @property
    def added_first_s(self) -> float:
        """Return the same of the first tokens."""
        return sum(self._after.first) - sum(self._before.first) - self._now

    @property
    def missed(self) -> int:
        """Return how many more prompts on the server, this one included, would miss an SLO."""
        queued = list(self._batch.queued.values())
        return _missed(self._after, [*queued, self._request]) - _missed(self._before, queued)


def _cached(server: SimulatedServer, hashes: tuple[int, ...], tokens: int) -> int:
    """Return how many of a prompt's tokens the server's cache holds; the last one is always computed."""
    size = server.params.block_size
    return server.engine.pool.match(hashes, (tokens - 1) // size) * size


def _missed(expected: Expected, prompts: list[SimulatedRequest]) -> int:
    missed = 0
    for request, first, last in zip(prompts, expected.first, expected.last, strict=True):
        ttft_ms, tpot_ms = request.slo_ttft_ms, request.slo_tpot_ms
        late = ttft_ms is not None and (first - request.arrival_s) * 1000 > ttft_ms
        slow = tpot_ms is not None and (last - first) * 1000 > tpot_ms * (request.output_tokens - 1)
        missed += late or slow
    return missed


class WatchedServers:
    """The servers of a pool with all requests on each: the policy's and foreign ones."""

    def __init__(self, pool: Surroundings) -> None:
        self._clock = pool.clock
        self._batches = [_Batch(server) for server in pool.servers]
        self._numbers = {server.hostport: server.number for server in pool.servers}
        self._at: dict[str, int] = {}
        """Request id to the number of its server."""

    def number_of(self, hostport: str) -> int:
        """Return the number of the server with the address."""
        return self._numbers[hostport]

    def prospect(self, number: int, request: SimulatedRequest, hashes: tuple[int, ...]) -> Prospect:
        """Return what a server would make of a request that comes now."""
        return Prospect(self._batches[number], request, hashes, self._clock.now)

    def picked(self, request: SimulatedRequest, server: int) -> None:
        """Note that a request goes to a server."""
        self._at[request.request_id] = server
        self._batches[server].queued[request.request_id] = request

    def answering(self, request: SimulatedRequest, server: int) -> None:
        """Note the first token, which a fallback may have given."""
        at = self._at.get(request.request_id)
        if at == server:
            self._batches[at].answering(request)
        elif at is not None:
            self._batches[at].ended(request)

    def ended(self, request: SimulatedRequest) -> None:
        """Forget a request."""
        at = self._at.pop(request.request_id, None)
        if at is not None:
            self._batches[at].ended(request)


Measure = Callable[[Prospect], float]


class Oracle(Policy):
    """Takes the server whose prospect is lowest by the first measure, among equal ones by the next."""

    def __init__(self, measures: tuple[Measure, ...]) -> None:
        self._measures = measures
        self._pool: Surroundings
        self._batches: list[_Batch] = []
        self._turn = 0

    @override
    def start(self, pool: Surroundings) -> None:
        self._pool = pool
        self._batches = [_Batch(server) for server in pool.servers]

    @override
    def decide(self, request: SimulatedRequest, resume: Resume) -> Pick | Refused | None:
        now = self._pool.clock.now
        listed = [each for each in self._batches if each.server.in_pool and each.server.is_up]
        sizes = {each.server.params.block_size for each in listed}
        hashes = {size: block_hashes(request, size) for size in sizes}
        best = [Prospect(each, request, hashes[each.server.params.block_size], now) for each in listed]
        if not best:
            return Refused("no-endpoints")
        for measure in self._measures:
            values = [measure(each) for each in best]
            lowest = min(values)
            best = [each for each, value in zip(best, values, strict=True) if value <= lowest]
        self._turn += 1  # equal ones take turns
        number = best[self._turn % len(best)].server.number
        self._batches[number].queued[request.request_id] = request
        return Pick([number], request)

    @override
    def answering(self, pick: Pick, served_by: int) -> None:
        request = pick.held
        if isinstance(request, SimulatedRequest):
            self._batches[pick.servers[0]].answering(request)

    @override
    def ended(self, pick: Pick, request: SimulatedRequest, *, served: bool) -> None:
        self._batches[pick.servers[0]].ended(request)

    @override
    def endpoints_changed(self) -> None:
        pass

    @override
    def restart(self, down_s: float) -> None:
        pass

    @override
    def leak(self) -> str:
        left = sum(len(each.queued) + len(each.entries) + len(each.decoding) for each in self._batches)
        return f"the oracle counts {left} requests" if left else ""


#: The measures of each oracle.
MEASURES: Final[Mapping[str, tuple[Measure, ...]]] = {
    "oracle-ttft": (lambda p: p.ttft_s, lambda p: p.e2e_s),
    "oracle-sum": (lambda p: p.added_s,),
    "oracle-cache": (lambda p: p.uncached, lambda p: p.added_s),
    "oracle-first": (lambda p: p.added_first_s, lambda p: p.added_s),
    "oracle-e2e": (lambda p: p.e2e_s,),
    "oracle-slo": (lambda p: p.missed, lambda p: p.added_s),
}


class _MakeOracle:
    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, _registry: Registry, _seed: str) -> Policy:
        return Oracle(MEASURES[self._name])


ORACLES: Final[Mapping[str, Make]] = {name: _MakeOracle(name) for name in MEASURES}
