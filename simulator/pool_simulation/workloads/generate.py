"""Generated streams: from the model of a stream to its requests. Pure; all randomness is seeded.

Everything random about a session is drawn when it begins, in the order of arrivals. So a session's contents
do not depend on how fast the pool answers, and two pools under one seed get the same sessions.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import numpy as np

from pool_simulation.workload import Segment, SimulatedRequest
from pool_simulation.workloads.arrivals import ClosedLoop
from pool_simulation.workloads.distributions import Distribution, counts, draws, ranks, zipf_weights
from pool_simulation.workloads.segments import MAX_CLIENTS, MAX_SESSIONS, MAX_TURNS, SegmentIds
from pool_simulation.workloads.spec import Adapters, Mix, Slo, Stream

#: Values drawn at once: of a stream, and of each client of a closed loop, of which there may be many.
BLOCK: Final = 256
_CLIENT_BLOCK: Final = 8
#: Shortest pause of a closed loop's client after a refusal. Without it, a client that does not think would be
#: refused for ever at one moment of virtual time.
_RETRY_S: Final = 1.0


def seeded(seed: int, *names: str | int) -> np.random.SeedSequence:
    """Return the seed of one thing in a run: it depends on the names only, not on what else is in the run."""
    digest = hashlib.blake2b("\0".join(map(str, names)).encode(), digest_size=16).digest()
    words = [int.from_bytes(digest[at : at + 4], "little") for at in range(0, 16, 4)]
    return np.random.SeedSequence(entropy=seed, spawn_key=words)


def generator(seed: np.random.SeedSequence) -> np.random.Generator:
    """Return the generator of a seed; the algorithm is named, as numpy may change its default."""
    return np.random.Generator(np.random.PCG64(seed))


@dataclass(frozen=True, slots=True)
class Labels:
    """What the requests of a source have in common."""

    stream: str
    model: str
    objective: str | None
    priority: int
    slo: Slo


@dataclass(slots=True)
class _Session:
    number: int
    """Within the stream; with a client, `client * MAX_SESSIONS` and the client's count of sessions."""
    client: int | None
    tenant: str
    adapter: str | None
    prompt: tuple[Segment, ...]
    turns: list[tuple[int, int, float]]
    """(message tokens, output tokens, think seconds before it) of each turn left, the next one last."""
    turn: int = 0


class _Drawer:
    """The endless draws of everything about a session."""

    def __init__(self, stream: Stream, seed: np.random.SeedSequence, block: int) -> None:
        rngs = [generator(each) for each in seed.spawn(9)]
        self.prompt = counts(stream.prompt_tokens, rngs[0], block)
        self.output = counts(stream.output_tokens, rngs[1], block)
        turns = stream.turns
        self.turns: Iterator[int] = counts(turns.count, rngs[2], block) if turns else repeat(1)
        self.think: Iterator[float] = draws(turns.think_s, rngs[3], block) if turns else repeat(0.0)
        message = (turns and turns.message_tokens) or stream.prompt_tokens
        self.message = counts(message, rngs[4], block)
        self.tenant = names(stream.tenants, "tenant", rngs[5], block)
        self.adapter = adapters(stream.adapters, rngs[6], block)
        system, documents = stream.system_prompts, stream.documents
        self.system = ranks(zipf_weights(system.count, system.zipf), rngs[7], block) if system else None
        self.document = (
            ranks(zipf_weights(documents.count, documents.zipf), rngs[8], block) if documents else None
        )


def names(mix: Mix | None, prefix: str, rng: np.random.Generator, block: int) -> Iterator[str]:
    """Yield a name for each request, "" where there is no mix."""
    if mix is None:
        return repeat("")
    if mix.names is not None:
        known = list(mix.names)
        weights = np.asarray(list(mix.names.values()), np.float64)
    else:
        count = mix.count or 1
        known = [f"{prefix}-{number}" for number in range(count)]
        weights = zipf_weights(count, mix.zipf)
    return (known[rank] for rank in ranks(weights, rng, block))


def adapters(mix: Adapters | None, rng: np.random.Generator, block: int) -> Iterator[str | None]:
    """Yield an adapter for each request, None for the base model."""
    if mix is None:
        return repeat(None)
    lots = ranks(np.asarray([mix.base_share, 1 - mix.base_share]), rng, block)
    return (name if lot else None for lot, name in zip(lots, names(mix, "adapter", rng, block), strict=True))


class GeneratedStream:
    """One stream of a workload file."""

    def __init__(
        self, stream: Stream, labels: Labels, ids: SegmentIds, *, seed: int, end_s: float, scale: float
    ) -> None:
        self._stream = stream
        self._labels = labels
        self._ids = ids
        self._seed = seed
        self._end_s = end_s
        self._scale = scale
        self._live: dict[str, _Session] = {}
        system, documents = stream.system_prompts, stream.documents
        self._systems = self._shared("system", system.tokens, 0, system.count) if system else []
        first = len(self._systems)
        self._documents = (
            self._shared("documents", documents.tokens, first, documents.count) if documents else []
        )
        self._clients: dict[int, tuple[_Drawer, Iterator[float]]] = {}

    def _shared(self, name: str, tokens: Distribution, first: int, count: int) -> list[Segment]:
        sizes = counts(tokens, self._rng(name), BLOCK)
        return [Segment(self._ids.shared(first + number), next(sizes)) for number in range(count)]

    def _rng(self, *parts: str | int) -> np.random.Generator:
        return generator(seeded(self._seed, self._labels.stream, *parts))

    def arrivals(self) -> Iterator[SimulatedRequest]:
        """Yield the first requests of sessions, or of the clients of a closed loop."""
        arrivals = self._stream.arrivals
        if isinstance(arrivals, ClosedLoop):
            yield from self._clients_begin(arrivals)
            return
        drawer = _Drawer(self._stream, seeded(self._seed, self._labels.stream, "sessions"), BLOCK)
        for number, at in enumerate(arrivals.times(self._rng("arrivals"), self._scale)):
            if at >= self._end_s:
                return
            yield self._request(self._session(number, None, drawer), at)

    def _clients_begin(self, arrivals: ClosedLoop) -> Iterator[SimulatedRequest]:
        clients = min(max(1, round(arrivals.clients * self._scale)), MAX_CLIENTS)
        for client in range(clients):
            at = arrivals.ramp_s * client / clients
            if at >= self._end_s:
                return
            seed = seeded(self._seed, self._labels.stream, "client", client)
            thinks = generator(seed.spawn(1)[0])
            self._clients[client] = (
                _Drawer(self._stream, seed, _CLIENT_BLOCK),
                draws(arrivals.think_s, thinks, _CLIENT_BLOCK),
            )
            yield self._request(self._client_session(client, 0), at)

    def finished(self, request: SimulatedRequest, now: float, *, served: bool) -> Iterable[SimulatedRequest]:
        """Return the session's next turn, or the next session of a closed loop's client."""
        session = self._live.pop(request.request_id, None)
        if session is None:
            return ()
        if served and session.turns:
            at = now + session.turns[-1][2]
        elif session.client is not None:
            think_s = next(self._clients[session.client][1])
            at = now + (think_s if served else max(think_s, _RETRY_S))
            session = self._client_session(session.client, session.number % MAX_SESSIONS + 1)
        else:
            return ()
        return () if at >= self._end_s else (self._request(session, at),)

    def _client_session(self, client: int, number: int) -> _Session:
        return self._session(client * MAX_SESSIONS + number, client, self._clients[client][0])

    def _session(self, number: int, client: int | None, drawer: _Drawer) -> _Session:
        stream = self._stream
        prefix: list[Segment] = []
        if drawer.system is not None:
            prefix.append(self._systems[next(drawer.system)])
        if drawer.document is not None and stream.documents:
            prefix.extend(self._documents[next(drawer.document)] for _ in range(stream.documents.each))
        length = sum(segment.tokens for segment in prefix)
        turns: list[tuple[int, int, float]] = []
        for turn in range(min(next(drawer.turns), MAX_TURNS)):
            message = next(drawer.message) if turn else next(drawer.prompt)
            output, think_s = next(drawer.output), next(drawer.think)
            if length + message > stream.max_prompt_tokens:
                if turn:
                    break
                message = max(1, stream.max_prompt_tokens - length)
            turns.append((message, output, think_s))
            length += message + output
        turns.reverse()
        return _Session(number, client, next(drawer.tenant), next(drawer.adapter), tuple(prefix), turns)

    def _request(self, session: _Session, at: float) -> SimulatedRequest:
        message, output, _ = session.turns.pop()
        number, turn, labels = session.number, session.turn, self._labels
        prompt = (*session.prompt, Segment(self._ids.message(number, turn), message))
        answer = self._ids.answer(number, turn)
        name = f"{labels.stream}/{number}"
        request = SimulatedRequest(
            request_id=f"{name}/{turn}",
            arrival_s=at,
            prompt=prompt,
            output_tokens=output,
            output_segment=answer,
            model=labels.model,
            adapter=session.adapter,
            tenant=session.tenant,
            objective=labels.objective,
            priority=labels.priority,
            slo_ttft_ms=labels.slo.ttft_ms,
            slo_tpot_ms=labels.slo.tpot_ms,
            session=name if self._stream.turns else None,
            stream=labels.stream,
        )
        if session.turns or session.client is not None:
            session.turn += 1
            session.prompt = (*prompt, Segment(answer, output))
            self._live[request.request_id] = session
        return request
