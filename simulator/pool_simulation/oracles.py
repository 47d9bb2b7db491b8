"""Policies that know what no picker can: each engine's exact state, the true output lengths, the next tokens.

Each runs every server's engine ahead with and without the request and takes the best server by one measure.
None is optimal: a server is chosen for one request at a time, without knowledge of later arrivals. The oracle
of a figure is the best of them, and of all other policies, in that figure.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from typing_extensions import override

from endpoint_picker.config.registry import Registry
from pool_simulation.lookahead import Decoding, Expected, Prompt, look_ahead
from pool_simulation.policies import Make
from pool_simulation.policy import Pick, Policy, Refused, Resume, Surroundings
from pool_simulation.prompts import block_hashes
from pool_simulation.server import SimulatedServer
from pool_simulation.workload import SimulatedRequest


class Prospect(NamedTuple):
    """What one server would make of a request. Times in seconds from now."""

    ttft_s: float
    e2e_s: float
    added_s: float
    """By how much the sum of all requests' ends on the server, this one's included, grows."""
    added_first_s: float
    """The same of the first tokens."""
    missed: float
    """How many more requests on the server, this one included, miss an SLO."""
    cached: int
    """Prompt tokens in the server's cache."""
    work: float
    """Seconds until the server would be idle."""


Rank = Callable[[Prospect], tuple[float, ...]]
"""Key by which prospects are compared; the lowest wins."""


class Oracle(Policy):
    """Sends each request to the server with the best prospect."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._pool: Surroundings
        self._requests: dict[str, SimulatedRequest] = {}
        self._turn = 0

    @override
    def start(self, pool: Surroundings) -> None:
        self._pool = pool

    @override
    def decide(self, request: SimulatedRequest, resume: Resume) -> Pick | Refused | None:
        self._requests[request.request_id] = request
        now, rank = self._pool.clock.now, self._rank
        servers = [server for server in self._pool.servers if server.in_pool and server.is_up]
        if not servers:
            return Refused("no-endpoints")
        self._turn += 1  # spreads ties
        count = len(servers)
        order = [servers[(self._turn + at) % count] for at in range(count)]
        best = min(order, key=lambda server: rank(self._prospect(server, request, now)))
        return Pick([best.number], request.request_id)

    def _prospect(self, server: SimulatedServer, request: SimulatedRequest, now: float) -> Prospect:
        params = server.params
        decoding: list[Decoding] = []
        prompts: list[Prompt] = []
        decoded: list[SimulatedRequest] = []
        queued: list[SimulatedRequest] = []
        first_times: list[float] = []
        begin = now
        pool = server.engine.pool
        for request_id, sequence in server.live.items():
            asked = sequence.request
            generated = sequence.generated
            simulated = self._requests[request_id]
            if generated and sequence.first_token_at is not None:
                decoding.append(Decoding(asked.output_tokens - generated, asked.prompt_tokens + generated))
                decoded.append(simulated)
                first_times.append(sequence.first_token_at)
                continue
            if sequence.started_at is None:
                cached = _cached(server, asked.block_hashes, asked.prompt_tokens)
            else:
                cached = sequence.cached_tokens
                if server.due is not None:  # its iteration runs; the next can begin when that ends
                    begin = max(now, server.due)
            prompts.append(Prompt(asked.prompt_tokens - cached, asked.prompt_tokens, asked.output_tokens))
            queued.append(simulated)
        tokens = request.prompt_tokens
        cached = _cached(server, block_hashes(request, params.block_size), tokens)
        free = pool.available * params.block_size
        before = look_ahead(params, begin, decoding, prompts, free, server.slowness)
        new = Prompt(tokens - cached, tokens, request.output_tokens)
        after = look_ahead(params, begin, decoding, [*prompts, new], free, server.slowness)
        queued_too = [*queued, request]
        return Prospect(
            ttft_s=after.first[-1] - now,
            e2e_s=after.last[-1] - now,
            added_s=math.fsum(after.last) - math.fsum(before.last) - now,
            added_first_s=math.fsum(after.first) - math.fsum(before.first) - now,
            missed=_missed(after, decoded, first_times, queued_too)
            - _missed(before, decoded, first_times, queued),
            cached=cached,
            work=max(before.last, default=now) - now,
        )

    @override
    def answering(self, pick: Pick, served_by: int) -> None:
        pass

    @override
    def ended(self, pick: Pick, request: SimulatedRequest, *, served: bool) -> None:
        del self._requests[request.request_id]

    @override
    def endpoints_changed(self) -> None:
        pass

    @override
    def restart(self, down_s: float) -> None:
        pass

    @override
    def leak(self) -> str:
        return f"the oracle holds {len(self._requests)} requests" if self._requests else ""


def _cached(server: SimulatedServer, hashes: tuple[int, ...], tokens: int) -> int:
    """Return how many of a prompt's tokens the server's cache holds; the last one is always computed."""
    size = server.params.block_size
    return server.engine.pool.match(hashes, (tokens - 1) // size) * size


def _missed(
    expected: Expected,
    decoded: list[SimulatedRequest],
    first_times: list[float],
    queued: list[SimulatedRequest],
) -> int:
    """Return how many of the requests would miss an SLO."""
    missed = 0
    firsts = [*first_times, *expected.first]
    for request, first, last in zip([*decoded, *queued], firsts, expected.last, strict=True):
        ttft_ms, tpot_ms = request.slo_ttft_ms, request.slo_tpot_ms
        late = ttft_ms is not None and (first - request.arrival_s) * 1000 > ttft_ms
        slow = tpot_ms is not None and (last - first) * 1000 > tpot_ms * max(1, request.output_tokens - 1)
        missed += late or slow
    return missed


#: Ranks by name.
RANKS: Final[Mapping[str, Rank]] = {
    "oracle-ttft": lambda prospect: (prospect.ttft_s, prospect.added_s),
    "oracle-first": lambda prospect: (prospect.added_first_s, prospect.added_s),
    "oracle-e2e": lambda prospect: (prospect.e2e_s, prospect.added_s),
    "oracle-sum": lambda prospect: (prospect.added_s,),
    "oracle-slo": lambda prospect: (prospect.missed, prospect.added_s),
    "oracle-cache": lambda prospect: (-prospect.cached, prospect.added_s),
}


class _MakeOracle:
    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, _registry: Registry, _seed: str) -> Policy:
        return Oracle(RANKS[self._name])


ORACLES: Final[Mapping[str, Make]] = {name: _MakeOracle(name) for name in RANKS}
