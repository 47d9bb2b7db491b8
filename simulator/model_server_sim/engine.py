"""Continuous batching as a pure model: requests and the time go in, tokens and the next due time come out.

It uses no asyncio, clock, random state or HTTP, so the live server and a discrete-event simulation can drive
the same code. All times are simulated seconds on the caller's clock and must not run backwards.

An iteration processes a batch: one token of every decoding sequence, and chunks of prompts up to the token
budget. Running sequences go first, then the queue in order of arrival; a prompt is let in when all of it fits
into the free blocks. A sequence that finds no KV block preempts the one that started last, whose prompt and
output are computed again later.

Two ways to drive an engine, which give the same times to the last bit:

- `step(now)` ends one iteration a call and reports every token. The live server streams with it.
- `advance(now)` goes to `now` in one call and reports first and last tokens only. Iterations that only
  decode, with the same sequences, form a *run*: nothing but their number changes the state, so a run is
  computed in closed form, whatever its length. A simulation of pools uses it:

      progress = engine.advance(now)     # ends what is due; progress.started, progress.finished
      engine.submit(request, now)        # also abort, release, set_speed, freeze, thaw
      due = engine.advance(now).next_due # call again then, or after the next submit; None: nothing to do

  Call `advance(now)` before a change at `now` and before reading the engine's state, and again after a change
  for the new due time. `next_due` may be an instant at which no token appears (a chunk of a prompt ends).

The tokens of decoding sequences advance on one token clock per engine. A sequence keeps its offset to that
clock, so an iteration costs nothing per sequence. For the same reason the blocks that hold output get their
names, by which later prompts share them, when the sequence ends.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from itertools import count as counter
from typing import NamedTuple

from model_server_sim.adapters import AdapterSlots
from model_server_sim.blocks import BlockPool, Holding
from model_server_sim.jitter import Jitter
from model_server_sim.params import EngineParams
from model_server_sim.request import Request

__all__ = [
    "Counters",
    "Engine",
    "Event",
    "Place",
    "Progress",
    "Request",
    "Sequence",
    "Step",
]


class Place(IntEnum):
    """Where a sequence is inside the engine."""

    WAITING = 0
    TRANSFERRING = 1
    """It holds its blocks and waits for keys and values from another engine; counts as waiting."""
    PREFILLING = 2
    DECODING = 3
    HELD = 4
    """Finished; its blocks wait for another engine to fetch them."""
    GONE = 5


class TokenClock:
    """The tokens that an engine has given each of its decoding sequences since it started."""

    __slots__ = ("at", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.at = 0.0
        """When the last iteration ended."""


class Sequence:
    """A request inside the engine, with its progress. Callers read it; only the engine writes.

    `generated`, `tokens` and `last_token_at` are as of the last `step` or `advance`.
    """

    __slots__ = (
        "_clock",
        "_computed",
        "_generated",
        "_last_token_at",
        "_zero",
        "arrived_at",
        "cached_tokens",
        "first_token_at",
        "holding",
        "place",
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
        self.cached_tokens = 0
        """Prompt tokens that the prefix cache saved at the first start."""
        self.preemptions = 0
        self.holding = Holding()
        self.place = Place.WAITING
        self._last_token_at = now
        self._computed = 0
        self._generated = 0
        self._clock: TokenClock | None = None
        self._zero = 0

    @property
    def generated(self) -> int:
        """Return the output tokens so far."""
        return self._generated if self._clock is None else self._clock.tokens - self._zero

    @property
    def tokens(self) -> int:
        """Return the tokens known so far: prompt and output."""
        return self.request.prompt_tokens + self.generated

    @property
    def last_token_at(self) -> float:
        """Return when its latest token was given; its arrival before the first."""
        return self._last_token_at if self._clock is None else self._clock.at

    @property
    def finished(self) -> bool:
        """Return whether all output tokens are generated."""
        return self.generated >= self.request.output_tokens


class Event(NamedTuple):
    """One more token of a sequence, or several at once under speculative decoding; the last one when
    `sequence.finished`."""

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


class Progress(NamedTuple):
    """The result of one call of `Engine.advance`."""

    started: list[Sequence]
    """Those that gave their first token, in order; `first_token_at` says when."""
    finished: list[Sequence]
    """Those that gave their last token, in order; `last_token_at` says when. May hold one of `started`."""
    next_due: float | None
    """When to call again; None: not before the next change."""


@dataclass(slots=True)
class Counters:
    """Totals since the start; each only grows."""

    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    external_queries: int = 0
    """Prompt tokens of requests with `remote_prefill` that the prefix cache did not hold."""
    external_hits: int = 0
    """Of these, tokens that came from another engine."""
    prompt_tokens: int = 0
    """Of sequences that gave their first token."""
    generation_tokens: int = 0
    preemptions: int = 0
    iterations: int = 0
    lora_loads: int = 0
    """Adapters loaded into a slot."""
    draft_tokens: int = 0
    """Tokens that the draft proposed."""
    accepted_tokens: int = 0
    """Proposed tokens that were accepted."""


class Engine:
    """One model server's scheduler, KV cache and accelerator.

    `uniform` gives numbers in [0, 1) for the jitter, e.g. `random.Random(seed).random`: equal numbers and
    equal calls give equal events. All of them are drawn at construction.
    """

    def __init__(self, params: EngineParams, uniform: Callable[[], float]) -> None:
        self.params = params
        self.counters = Counters()
        self.pool = BlockPool(params.num_gpu_blocks)
        self._live: dict[str, Sequence] = {}
        self._held: dict[str, Sequence] = {}
        self._speed = params.speed
        self._frozen_at: float | None = None
        self._serial = counter()
        # The queue: arrivals that no iteration has seen, the rest in order, transfers by their end.
        self._arrivals: deque[Sequence] = deque()
        self._waiting: deque[Sequence] = deque()
        self._transfers: list[tuple[float, int, Sequence]] = []
        self._transferred: deque[Sequence] = deque()
        self._adapters = AdapterSlots(params.max_loras)
        # The batch. `_crossings[r]` counts decoding sequences that need a block when the clock is r modulo
        # the block size; `_offsets` is the sum of their contexts minus the clock.
        self._prefilling: dict[str, Sequence] = {}
        self._decoding: dict[str, Sequence] = {}
        self._ends: list[tuple[int, int, Sequence]] = []
        self._crossings = [0] * params.block_size
        self._offsets = 0
        self._chunks: list[tuple[Sequence, int]] = []
        # The clock, and how many of its tokens decoding sequences have blocks for.
        self._clock = TokenClock()
        self._ticks = 0
        self._reserved = 0
        self._rate = params.tokens_per_iteration
        # The run: `_planned` iterations from `_origin`, of which `_done` are accounted for.
        self._jitter = Jitter(params.jitter, uniform)
        self._origin = 0.0
        self._planned = 0
        self._done = 0
        self._first_s = 0.0
        self._growth_s = 0.0
        self._due = 0.0
        self._free_at = 0.0
        self._freed = False

    @property
    def waiting(self) -> int:
        """Return how many requests wait to be run, preempted and transferring ones included."""
        return len(self._arrivals) + len(self._waiting) + len(self._transfers) + len(self._transferred)

    @property
    def running(self) -> int:
        """Return how many sequences hold a place in the batch."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def kv_cache_usage(self) -> float:
        """Return the fraction of KV blocks that sequences hold, in [0, 1]; idle ones count as free."""
        return self.pool.used / self.pool.total

    @property
    def frozen(self) -> bool:
        """Return whether iterations stand still."""
        return self._frozen_at is not None

    def blocks_of(self, sequence: Sequence) -> int:
        """Return the KV blocks that a sequence holds, shared ones included."""
        if sequence.place is not Place.DECODING:
            return len(sequence.holding.shared) + sequence.holding.private
        return self._blocks(sequence.tokens - 1 + self._reserved - self._clock.tokens)

    def waiting_adapters(self) -> set[str]:
        """Return the adapters of waiting requests."""
        queued = [*self._arrivals, *self._waiting, *self._transferred]
        queued += [sequence for _, _, sequence in self._transfers]
        return {s.request.adapter for s in queued if s.request.adapter}

    def running_adapters(self) -> set[str]:
        """Return the adapters of running requests."""
        return set(self._adapters.uses)

    def loaded_adapters(self) -> list[str]:
        """Return the adapters in LoRA slots, least recently used first; vLLM's metrics show no idle ones."""
        return self._adapters.loaded

    def submit(self, request: Request, now: float) -> Sequence:
        """Queue a request; call `step` or `advance` next. Raises ValueError if it could never be served."""
        longest = self.params.longest_sequence
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError("a request needs at least one prompt token and one output token")
        if request.prompt_tokens + request.output_tokens > longest:
            msg = f"{request.prompt_tokens} + {request.output_tokens} tokens exceed the limit of {longest}"
            raise ValueError(msg)
        if request.adapter and not self.params.max_loras:
            raise ValueError("this engine runs no LoRA adapters")
        if request.remote_decode and request.output_tokens != 1:
            raise ValueError("a request that another engine decodes has one output token here")
        if request.request_id in self._live or request.request_id in self._held:
            msg = f"the engine holds a request {request.request_id} already"
            raise ValueError(msg)
        sequence = Sequence(request, now)
        self._live[request.request_id] = sequence
        self._arrivals.append(sequence)
        if self._planned - self._done > 1 and self.running < self.params.max_num_seqs:
            self._cut(self._iterations_until(now))
        return sequence

    def abort(self, request_id: str) -> bool:
        """Drop a request and free its blocks at once; False when it is unknown or has finished."""
        sequence = self._live.pop(request_id, None)
        if sequence is None:
            return False
        match sequence.place:
            case Place.DECODING | Place.PREFILLING:
                self._leave_batch(sequence)
            case Place.TRANSFERRING:
                self._transfers = [entry for entry in self._transfers if entry[2] is not sequence]
                heapq.heapify(self._transfers)
                if sequence in self._transferred:
                    self._transferred.remove(sequence)
            case _:
                queue = self._waiting if sequence in self._waiting else self._arrivals
                queue.remove(sequence)
        sequence.place = Place.GONE
        self.pool.release(sequence.holding)
        self._cut(self._done + 1)
        self._freed = not self._planned
        return True

    def release(self, request_id: str) -> bool:
        """Free the blocks of a finished `remote_decode` request; False when none are held for it."""
        sequence = self._held.pop(request_id, None)
        if sequence is None:
            return False
        sequence.place = Place.GONE
        self.pool.release(sequence.holding)
        self._cut(self._done + 1)
        self._freed = not self._planned
        return True

    def set_speed(self, factor: float) -> None:
        """Multiply the speed class by a factor above 0, from the next iteration on."""
        if not factor > 0:
            raise ValueError("the factor must be above 0")
        self._speed = self.params.speed * factor
        self._cut(self._done + 1)

    def freeze(self, now: float) -> None:
        """Stop in the middle of the iteration, as a hung accelerator does; requests still queue."""
        if self._frozen_at is None:
            self._frozen_at = now

    def thaw(self, now: float) -> None:
        """Go on where `freeze` stopped."""
        if self._frozen_at is None:
            return
        stood_s, self._frozen_at = now - self._frozen_at, None
        self._free_at = max(self._free_at, now)
        self._transfers = [(at + stood_s, serial, one) for at, serial, one in self._transfers]
        if self._planned:
            self._origin += stood_s
            self._cut(self._done + 1)
            self._due = self._time_after(self._planned)

    def advance(self, now: float) -> Progress:
        """Do all that is due by `now`; see the module's text."""
        started: list[Sequence] = []
        finished: list[Sequence] = []
        if self._frozen_at is not None:
            return Progress(started, finished, None)
        while True:
            if not self._planned:
                self._begin(now)
                if not self._planned:
                    return Progress(started, finished, self._idle_due())
            if self._due > now:
                break
            self._end_run(started, finished)
        if self._planned - self._done > 1:
            done = self._iterations_until(now)
            at = self._time_after(done)
            if at <= now:
                self._settle(done, at)
            elif done - 1 > self._done:
                self._settle(done - 1, self._time_after(done - 1))
        return Progress(started, finished, self._due)

    def step(self, now: float) -> Step:
        """End the iteration that is due, if one is, and begin the next where it ended.

        A caller that is late loses nothing: call again while `next_time <= now`.
        """
        events: list[Event] = []
        batch_tokens = 0
        if self._frozen_at is not None:
            return Step(events, None, 0)
        if self._planned:
            due = self._time_after(self._done + 1)
            if now < due:
                return Step(events, due, 0)
            events, batch_tokens = self._end_iteration()
        if not self._planned:
            self._begin(now)
        due_next = self._time_after(self._done + 1) if self._planned else self._idle_due()
        return Step(events, due_next, batch_tokens)

    def _end_iteration(self) -> tuple[list[Event], int]:
        """End one iteration; return its events and its tokens."""
        clock = self._clock
        before_at, before = clock.at, clock.tokens
        decoding = list(self._decoding.values())
        chunks = [(s, n, s.last_token_at) for s, n in self._chunks if s.place is Place.PREFILLING]
        if self._done + 1 < self._planned:
            self._settle(self._done + 1, self._time_after(self._done + 1))
        else:
            self._end_run([], [])
        at = clock.at
        events = [Event(sequence, at, at - before_at) for sequence in decoding]
        for sequence, _, last in chunks:
            if sequence.place is not Place.PREFILLING:
                events.append(Event(sequence, at, at - last))
        tokens = len(decoding) * (clock.tokens - before) + sum(n for _, n, _ in chunks)
        return events, tokens

    # The run in progress.

    def _time_after(self, iterations: int) -> float:
        """Return when the run's iteration of this number ends, counted from 1; 0: when the run began."""
        plain, weighted = self._jitter.sums(iterations)
        return self._origin + self._first_s * plain + self._growth_s * weighted

    def _iterations_until(self, when: float) -> int:
        """Return the least number of iterations of the run, above `_done`, that end at or after `when`.

        At most `_planned`.
        """
        low, high = self._done + 1, self._planned
        ahead = when - self._origin
        if ahead > 0:  # solves first * n + growth * n^2 / 2 = ahead; the jitter moves it by a few
            first, growth = self._first_s, self._growth_s
            guess = int(2 * ahead / (first + (first * first + 2 * growth * ahead) ** 0.5))
            count = min(max(guess, low), high)
        else:
            count = low
        if count < high and self._time_after(count) < when:
            count += 1
            while count < high and self._time_after(count) < when:
                count += 1
            return count
        while count > low and self._time_after(count - 1) >= when:
            count -= 1
        return count

    def _cut(self, iterations: int) -> None:
        """Shorten the run, so that the next batch is chosen after this many iterations."""
        if self._done < iterations < self._planned:
            self._planned = iterations
            self._due = self._time_after(iterations)

    def _tokens_at(self, ticks: int) -> int:
        return ticks if self._rate == 1.0 else int(ticks * self._rate)

    def _settle(self, iterations: int, at: float) -> None:
        """Account for the run's iterations up to this number, and begin the next if it has one more.

        `at` is when the last of them ends.
        """
        ticks = self._ticks = self._ticks + iterations - self._done
        clock, counters = self._clock, self.counters
        tokens = self._tokens_at(ticks)
        counters.iterations += iterations - self._done
        decoding = len(self._decoding)
        counters.generation_tokens += decoding * (tokens - clock.tokens)
        if self.params.speculative_tokens:
            drafted = decoding * (iterations - self._done)
            counters.draft_tokens += drafted * self.params.speculative_tokens
            counters.accepted_tokens += decoding * (tokens - clock.tokens) - drafted
        clock.tokens = tokens
        clock.at = at
        self._done = iterations
        begun = ticks + 1 if iterations < self._planned else ticks
        self._reserve(self._tokens_at(begun))

    def _end_run(self, started: list[Sequence], finished: list[Sequence]) -> None:
        self._settle(self._planned, self._due)
        clock = self._clock
        self._free_at = clock.at
        self._jitter.pass_by(self._planned)
        self._planned = self._done = 0
        ends = self._ends
        while ends and ends[0][0] <= clock.tokens:
            end, _, sequence = heapq.heappop(ends)
            if sequence.place is Place.DECODING and sequence._zero + sequence.request.output_tokens == end:
                self._finish(sequence, finished)
        if self._chunks:
            self._end_chunks(clock.at, started, finished)

    def _end_chunks(self, at: float, started: list[Sequence], finished: list[Sequence]) -> None:
        chunks, self._chunks = self._chunks, []
        size = self.params.block_size
        for sequence, count in chunks:
            if sequence.place is not Place.PREFILLING:
                continue  # aborted while the iteration ran
            sequence._computed += count
            full = sequence._computed // size
            self.pool.commit(sequence.holding, sequence.request, full)
            if sequence._computed < sequence.tokens:
                continue
            sequence._generated += 1
            sequence._last_token_at = at
            self.counters.generation_tokens += 1
            if sequence.first_token_at is None:
                sequence.first_token_at = at
                self.counters.prompt_tokens += sequence.request.prompt_tokens
                started.append(sequence)
            if sequence._generated < sequence.request.output_tokens:
                self._decode(sequence)
            else:
                self._finish(sequence, finished)

    def _decode(self, sequence: Sequence) -> None:
        """Move a sequence whose prompt is computed to the decoding ones."""
        request_id = sequence.request.request_id
        del self._prefilling[request_id]
        self._decoding[request_id] = sequence
        tokens = self._clock.tokens
        context = sequence._computed
        sequence.place = Place.DECODING
        sequence._clock = self._clock
        sequence._zero = tokens - sequence._generated
        self._offsets += context - tokens
        self._crossings[(tokens - context) % self.params.block_size] += 1
        end = sequence._zero + sequence.request.output_tokens
        heapq.heappush(self._ends, (end, next(self._serial), sequence))

    def _finish(self, sequence: Sequence, finished: list[Sequence]) -> None:
        request = sequence.request
        finished.append(sequence)
        del self._live[request.request_id]
        self._leave_batch(sequence)
        if request.remote_decode:
            sequence.place = Place.HELD
            self._held[request.request_id] = sequence
            return
        sequence.place = Place.GONE
        self.pool.release(sequence.holding)

    def _leave_batch(self, sequence: Sequence) -> None:
        """Take a running sequence out of the batch; its holding is complete and named after that."""
        request = sequence.request
        if sequence.place is Place.DECODING:
            size, tokens = self.params.block_size, self._clock.tokens
            del self._decoding[request.request_id]
            generated = tokens - sequence._zero
            context = request.prompt_tokens + generated - 1
            self._offsets -= context - tokens
            self._crossings[(tokens - context) % size] -= 1
            holding = sequence.holding
            reserved = context + self._reserved - tokens
            holding.private = -(-reserved // size) - len(holding.shared)
            excess = generated - request.output_tokens
            if excess > 0:  # the last iteration accepted more than was asked for
                self.counters.generation_tokens -= excess
                self.counters.accepted_tokens -= excess
                generated, context = request.output_tokens, context - excess
            self.pool.commit(holding, request, context // size)
            sequence._clock = None
            sequence._generated = generated
            sequence._computed = context
            sequence._last_token_at = self._clock.at
        else:
            del self._prefilling[request.request_id]
        if request.adapter:
            self._adapters.leave(request.adapter)

    # The choice of the next batch.

    def _idle_due(self) -> float | None:
        """Return when an idle engine has to be called again."""
        due = [self._arrivals[0].arrived_at] if self._arrivals else []
        if self._transfers:
            due.append(self._transfers[0][0])
        return min(due, default=None)

    def _begin(self, now: float) -> None:
        """Choose the next batch and plan its run; plans nothing when no request can run by `now`."""
        start = self._free_at
        if self._freed:  # a change without a time, while nothing ran: it took place by now
            start = max(start, now)
            self._freed = False
        if not (self._decoding or self._prefilling or self._waiting or self._transferred):
            first = self._idle_due()
            if first is None or first > now:
                return
            start = max(start, first)
        while True:
            self._arrive(start)
            preemptions = self.counters.preemptions
            loads = self._choose(start)
            if self._decoding or self._chunks:
                self._plan(start, loads)
                return
            if self.counters.preemptions > preemptions:
                continue  # the only one that ran lost its place: the blocks are free for the queue
            # Nothing can run: a later arrival or transfer may change that, or a release of blocks.
            due = self._idle_due()
            if due is None or due > now:
                return
            start = max(start, due)

    def _arrive(self, start: float) -> None:
        arrivals, transfers = self._arrivals, self._transfers
        while arrivals and arrivals[0].arrived_at <= start:
            self._waiting.append(arrivals.popleft())
        while transfers and transfers[0][0] <= start:
            self._transferred.append(heapq.heappop(transfers)[2])

    def _choose(self, start: float) -> int:
        """Fill the batch; return how many adapters have to be loaded."""
        params = self.params
        preempted = self._reserve_or_preempt()
        budget = params.max_num_batched_tokens - len(self._decoding) * (1 + params.speculative_tokens)
        for sequence in list(self._prefilling.values()):
            if sequence.place is not Place.PREFILLING:
                break  # preempted for one before it
            count = min(sequence.tokens - sequence._computed, budget)
            if not count:
                break
            while not self.pool.grow(sequence.holding, self._blocks(sequence._computed + count)):
                last = next(reversed(self._prefilling.values()))
                self._preempt(last)
                if last is sequence:
                    return 0
            self._chunks.append((sequence, count))
            budget -= count
        if preempted or not budget or not (self._waiting or self._transferred):
            return 0
        return self._admit_waiting(start, budget)

    def _reserve_or_preempt(self) -> bool:
        """Give the decoding sequences the blocks of the next iteration; return whether one lost its place."""
        until, preempted = self._tokens_at(self._ticks + 1), False
        while self._need(until) > self.pool.available:
            last = next(reversed(self._prefilling or self._decoding))
            self._preempt(self._live[last])
            preempted = True
        self._reserve(until)
        return preempted

    def _need(self, until: int) -> int:
        """Return the blocks that the decoding sequences lack for the clock to reach `until`."""
        if until == self._reserved:
            return 0
        crossings = self._crossings
        rounds, rest = divmod(until - self._reserved, len(crossings))
        need = rounds * len(self._decoding)
        if rest:
            begin = self._reserved % len(crossings)
            if rest == 1:
                return need + crossings[begin]
            need += sum(crossings[begin : begin + rest])
            if begin + rest > len(crossings):
                need += sum(crossings[: begin + rest - len(crossings)])
        return need

    def _reserve(self, until: int) -> None:
        need = self._need(until)
        if need:
            self.pool.take(need)
        self._reserved = until

    def _preempt(self, victim: Sequence) -> None:
        self._leave_batch(victim)
        self.pool.release(victim.holding)
        victim.place = Place.WAITING
        victim._computed = 0
        victim.preemptions += 1
        self.counters.preemptions += 1
        self._waiting.appendleft(victim)

    def _admit_waiting(self, start: float, budget: int) -> int:
        """Admit transferred sequences, then the queue in order; return the adapters to be loaded."""
        limit, loads = self.params.max_num_seqs, 0
        passed_over: list[Sequence] = []
        for queue in (self._transferred, self._waiting):
            while queue and budget and self.running < limit:
                sequence = queue[0]
                adapter = sequence.request.adapter
                if adapter and not self._adapters.has_room_for(adapter):
                    passed_over.append(queue.popleft())
                    continue
                count = self._admit(sequence, start, budget)
                if count is None:
                    break
                queue.popleft()
                budget -= count
                if count and adapter and self._adapters.occupy(adapter):
                    loads += 1
                    self.counters.lora_loads += 1
            queue.extendleft(reversed(passed_over))
            passed_over.clear()
        return loads

    def _admit(self, sequence: Sequence, start: float, budget: int) -> int | None:
        """Let a queue's head in; return the tokens scheduled, None if too few blocks are free.

        0 tokens: its transfer begins.
        """
        size, request = self.params.block_size, sequence.request
        if sequence.place is Place.TRANSFERRING:
            count = min(sequence.tokens - sequence._computed, budget)
        else:
            # The last token is always computed: its output is the next token.
            limit = (sequence.tokens - 1) // size
            hits = request.block_hashes[: self.pool.match(request.block_hashes, limit)]
            cached = len(hits) * size
            transfer = request.remote_prefill and sequence.started_at is None
            count = sequence.tokens - cached if transfer else min(sequence.tokens - cached, budget)
            whole = self._blocks(sequence.tokens)
            if not self.pool.admit(sequence.holding, hits, self._blocks(cached + count), whole):
                return None
            sequence._computed = cached
            if sequence.started_at is None:
                sequence.cached_tokens = cached
                self.counters.prefix_queries += request.prompt_tokens
                self.counters.prefix_hits += cached
            if transfer:
                return self._transfer(sequence, start, sequence.tokens - 1 - cached)
        if sequence.started_at is None:
            sequence.started_at = start
        sequence.place = Place.PREFILLING
        self._prefilling[request.request_id] = sequence
        self._chunks.append((sequence, count))
        return count

    def _transfer(self, sequence: Sequence, start: float, tokens: int) -> int:
        sequence.place = Place.TRANSFERRING
        sequence._computed += tokens
        self.counters.external_queries += tokens
        self.counters.external_hits += tokens
        ready_at = start + self.params.kv_transfer_s + tokens * self.params.kv_transfer_token_s
        heapq.heappush(self._transfers, (ready_at, next(self._serial), sequence))
        return 0

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.params.block_size)

    def _plan(self, start: float, loads: int) -> None:
        """Time the chosen batch, and decide for how many iterations it stays the same."""
        params = self.params
        decoding = len(self._decoding)
        context = self._offsets + decoding * (self._clock.tokens + 1)
        checked = 1 + params.speculative_tokens
        seconds = params.iteration_s + params.speculative_tokens * params.draft_token_s
        seconds += loads * params.lora_load_s + decoding * checked * params.decode_sequence_s
        growth = 0.0
        if self._chunks:
            self._planned = 1
            prefill = pairs = 0
            for sequence, count in self._chunks:
                prefill += count
                context += sequence._computed + count
                pairs += count * sequence._computed + count * (count + 1) // 2
            seconds += prefill * params.prefill_token_s + pairs * params.attention_pair_s
        else:
            growth = decoding * self._rate * params.context_token_s
        seconds += context * params.context_token_s
        # The n-th iteration takes first + n * growth, n counted from 1.
        self._origin = start
        self._first_s = (seconds - growth) / self._speed
        self._growth_s = growth / self._speed
        self._done = 0
        if not self._chunks:
            self._planned = self._run_length()
        self._due = self._time_after(self._planned)

    def _run_length(self) -> int:
        """Return how many iterations the decoding batch stays the same: at least 1."""
        ends = self._ends
        while ends[0][2].place is not Place.DECODING or (
            ends[0][2]._zero + ends[0][2].request.output_tokens != ends[0][0]
        ):
            heapq.heappop(ends)  # aborted or preempted since
        length = max(1, int((ends[0][0]) / self._rate) - self._ticks)
        while length > 1 and self._tokens_at(self._ticks + length - 1) >= ends[0][0]:
            length -= 1
        while self._tokens_at(self._ticks + length) < ends[0][0]:
            length += 1
        available = self.pool.available
        spare = available // len(self._decoding) - 1
        if self._tokens_at(self._ticks + length) - self._reserved > spare * self.params.block_size:
            low, high = 1, length
            while low < high:
                middle = (low + high + 1) // 2
                if self._need(self._tokens_at(self._ticks + middle)) <= available:
                    low = middle
                else:
                    high = middle - 1
            length = low
        horizon = self._idle_due()
        if horizon is not None:
            self._planned = length
            length = self._iterations_until(horizon)
        return length
