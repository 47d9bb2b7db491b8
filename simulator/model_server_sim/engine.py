"""Continuous batching as a pure model: requests and the time go in, token events and the next due time out.

It uses no asyncio, clock, random state or HTTP, so the live server and a discrete-event simulation can drive
the same code. All times are simulated seconds on the caller's clock and must not run backwards.

An iteration processes a batch: one token of every decoding sequence, and chunks of prompts up to the token
budget. Running sequences go first, then the queue in order of arrival. A sequence that finds no KV block
preempts the one that started last, whose prompt and output are computed again later.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from model_server_sim.blocks import BlockPool, Holding
from model_server_sim.params import EngineParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One generation, as the engine needs it."""

    request_id: str
    prompt_tokens: int
    """At least 1."""
    output_tokens: int
    """Tokens after which the generation ends, at least 1."""
    block_hashes: tuple[int, ...] = ()
    """Name of each full block in order, each depending on all before it. May cover output tokens too."""
    adapter: str | None = None
    """LoRA adapter, None for the base model."""


class Sequence:
    """A request inside the engine, with its progress. Callers read it; only the engine writes."""

    __slots__ = (
        "arrived_at",
        "cached_tokens",
        "computed",
        "first_token_at",
        "generated",
        "holding",
        "last_token_at",
        "preemptions",
        "request",
        "started_at",
    )

    def __init__(self, request: Request, now: float) -> None:
        self.request = request
        self.arrived_at = now
        self.started_at: float | None = None
        """When its first iteration began."""
        self.first_token_at: float | None = None
        self.last_token_at = now
        self.cached_tokens = 0
        """Prompt tokens that the prefix cache saved at the first start."""
        self.computed = 0
        """Tokens whose keys and values are in the cache."""
        self.generated = 0
        self.preemptions = 0
        self.holding = Holding()

    @property
    def tokens(self) -> int:
        """Return the tokens known so far: prompt and output."""
        return self.request.prompt_tokens + self.generated

    @property
    def finished(self) -> bool:
        """Return whether all output tokens are generated."""
        return self.generated >= self.request.output_tokens


class Event(NamedTuple):
    """One more token of a sequence; the last one when `sequence.finished`."""

    sequence: Sequence
    at: float
    latency_s: float
    """Since the token before; since arrival for the first (TTFT)."""


class Step(NamedTuple):
    """The result of one call of `Engine.step`."""

    events: list[Event]
    next_time: float | None
    """When to call again; None: not before the next `submit`."""
    batch_tokens: int
    """Tokens that the iteration which just ended processed; 0 when none ended."""


@dataclass(slots=True)
class Counters:
    """Totals since the start; each only grows."""

    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    prompt_tokens: int = 0
    """Of sequences that gave their first token."""
    generation_tokens: int = 0
    preemptions: int = 0
    iterations: int = 0


class Engine:
    """One model server's scheduler, KV cache and accelerator.

    `uniform` gives numbers in [0, 1) for the jitter, e.g. `random.Random(seed).random`: equal numbers and
    equal calls give equal events.
    """

    def __init__(self, params: EngineParams, uniform: Callable[[], float]) -> None:
        self.params = params
        self.counters = Counters()
        self.pool = BlockPool(params.num_gpu_blocks)
        self._uniform = uniform
        self._live: dict[str, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._batch: list[tuple[Sequence, int]] = []
        self._free_at = 0.0
        self._ends_at: float | None = None

    @property
    def waiting(self) -> int:
        """Return how many requests wait to be run, preempted ones included."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Return how many sequences hold a place in the batch."""
        return len(self._running)

    @property
    def kv_cache_usage(self) -> float:
        """Return the fraction of KV blocks that sequences hold, in [0, 1]; idle ones count as free."""
        return self.pool.used / self.pool.total

    def waiting_adapters(self) -> set[str]:
        """Return the adapters of waiting requests."""
        return {s.request.adapter for s in self._waiting if s.request.adapter}

    def running_adapters(self) -> set[str]:
        """Return the adapters of running requests."""
        return {s.request.adapter for s in self._running if s.request.adapter}

    def submit(self, request: Request, now: float) -> Sequence:
        """Queue a request; call `step` next. Raises ValueError when it could never be served."""
        longest = self.params.longest_sequence
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError("a request needs at least one prompt token and one output token")
        if request.prompt_tokens + request.output_tokens > longest:
            msg = f"{request.prompt_tokens} + {request.output_tokens} tokens exceed the limit of {longest}"
            raise ValueError(msg)
        if request.adapter and not self.params.max_loras:
            raise ValueError("this engine runs no LoRA adapters")
        if request.request_id in self._live:
            msg = f"the engine holds a request {request.request_id} already"
            raise ValueError(msg)
        sequence = Sequence(request, now)
        self._live[request.request_id] = sequence
        self._waiting.append(sequence)
        return sequence

    def abort(self, request_id: str) -> bool:
        """Drop a request and free its blocks at once; False when it is unknown or has finished."""
        sequence = self._live.pop(request_id, None)
        if sequence is None:
            return False
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self.pool.release(sequence.holding)
        return True

    def step(self, now: float) -> Step:
        """End the iteration that is due, if one is, and begin the next where it ended.

        A caller that is late loses nothing: call again while `next_time <= now`.
        """
        events: list[Event] = []
        batch_tokens = 0
        if self._ends_at is not None:
            if now < self._ends_at:
                return Step(events, self._ends_at, 0)
            batch_tokens = sum(count for _, count in self._batch)
            events = list(self._end_iteration(self._ends_at))
        self._begin_iteration()
        return Step(events, self._ends_at, batch_tokens)

    def _end_iteration(self, at: float) -> Iterator[Event]:
        self.counters.iterations += 1
        self._free_at, self._ends_at = at, None
        batch, self._batch = self._batch, []
        any_finished = False
        for sequence, count in batch:
            if self._live.get(sequence.request.request_id) is not sequence:
                continue  # aborted while the iteration ran
            sequence.computed += count
            full = sequence.computed // self.params.block_size
            self.pool.commit(sequence.holding, sequence.request.block_hashes, full)
            if sequence.computed < sequence.tokens:
                continue
            yield self._emit(sequence, at)
            if sequence.finished:
                any_finished = True
                del self._live[sequence.request.request_id]
                self.pool.release(sequence.holding)
        if any_finished:
            self._running = [s for s in self._running if not s.finished]

    def _emit(self, sequence: Sequence, at: float) -> Event:
        latency_s = at - sequence.last_token_at
        sequence.generated += 1
        sequence.last_token_at = at
        self.counters.generation_tokens += 1
        if sequence.first_token_at is None:
            sequence.first_token_at = at
            self.counters.prompt_tokens += sequence.request.prompt_tokens
        return Event(sequence, at, latency_s)

    def _begin_iteration(self) -> None:
        start = self._free_at
        if not self._running:
            if not self._waiting:
                return
            start = max(start, self._waiting[0].arrived_at)
        budget, preempted = self._schedule_running()
        if not preempted:
            self._admit_waiting(start, budget)
        if self._batch:
            self._ends_at = start + self._duration_s()

    def _schedule_running(self) -> tuple[int, bool]:
        """Put running sequences into the batch; return the budget left and whether one was preempted."""
        budget, preempted = self.params.max_num_batched_tokens, False
        index = 0
        while index < len(self._running) and budget:
            sequence = self._running[index]
            count = min(sequence.tokens - sequence.computed, budget)
            while not self.pool.grow(sequence.holding, self._blocks(sequence.computed + count)):
                preempted = True
                if self._preempt_last() is sequence:
                    return budget, preempted
            self._batch.append((sequence, count))
            budget -= count
            index += 1
        return budget, preempted

    def _preempt_last(self) -> Sequence:
        victim = self._running.pop()
        self.pool.release(victim.holding)
        victim.computed = 0
        victim.preemptions += 1
        self.counters.preemptions += 1
        self._waiting.appendleft(victim)
        return victim

    def _admit_waiting(self, start: float, budget: int) -> None:
        adapters = self.running_adapters()
        passed_over: list[Sequence] = []
        while self._waiting and budget and len(self._running) < self.params.max_num_seqs:
            sequence = self._waiting[0]
            if sequence.arrived_at > start:
                break
            adapter = sequence.request.adapter
            if adapter and adapter not in adapters and len(adapters) >= self.params.max_loras:
                passed_over.append(self._waiting.popleft())
                continue
            count = self._admit(sequence, start, budget)
            if not count:
                break
            budget -= count
            if adapter:
                adapters.add(adapter)
        self._waiting.extendleft(reversed(passed_over))

    def _admit(self, sequence: Sequence, start: float, budget: int) -> int:
        """Move the queue's head into the batch; return the tokens scheduled, 0 if too few blocks are free."""
        size, request = self.params.block_size, sequence.request
        # The last token is always computed: its output is the next token.
        limit = (sequence.tokens - 1) // size
        hits = request.block_hashes[: self.pool.match(request.block_hashes, limit)]
        cached = len(hits) * size
        count = min(sequence.tokens - cached, budget)
        if not self.pool.admit(sequence.holding, hits, self._blocks(cached + count)):
            return 0
        self._waiting.popleft()
        self._running.append(sequence)
        self._batch.append((sequence, count))
        sequence.computed = cached
        if sequence.started_at is None:
            sequence.started_at = start
            sequence.cached_tokens = cached
            self.counters.prefix_queries += request.prompt_tokens
            self.counters.prefix_hits += cached
        return count

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.params.block_size)

    def _duration_s(self) -> float:
        params = self.params
        prefill = decoding = context = 0
        for sequence, count in self._batch:
            context += sequence.computed + count
            if sequence.generated and count == 1:
                decoding += 1
            else:
                prefill += count
        mean_s = (
            params.iteration_s
            + prefill * params.prefill_token_s
            + decoding * params.decode_sequence_s
            + context * params.context_token_s
        )
        return mean_s * (1 + params.jitter * (2 * self._uniform() - 1))
