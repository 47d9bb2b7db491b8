"""Runs one engine ahead: when each of its requests will have its first and its last token if none is added.

The engine's rules and its cost of an iteration, with sequences as counts: tokens left, context, uncached
prompt. A run of iterations that only decode takes one step. Not modelled are preemption, the loading of
adapters, speculative decoding, transfers and jitter. Pure.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from model_server_sim.params import EngineParams


class Decoding(NamedTuple):
    """A request that has had its first token."""

    left: int
    """Tokens to come, at least 1."""
    context: int
    """Tokens of prompt and answer so far, which the next iteration reads."""


class Prompt(NamedTuple):
    """A request whose prompt has to be computed."""

    uncached: int
    """Prompt tokens to compute, at least 1."""
    tokens: int
    """Prompt tokens."""
    output: int


class Expected(NamedTuple):
    """Times on the caller's clock: decoding requests first, then prompts, each in the order given."""

    first: list[float]
    """Of prompts only."""
    last: list[float]


def look_ahead(
    params: EngineParams,
    now: float,
    decoding: Sequence[Decoding],
    prompts: Sequence[Prompt],
    free_tokens: int,
    slowness: float = 1.0,
) -> Expected:
    """Return when the requests get their tokens; infinity for a prompt that never fits into `free_tokens`.

    `prompts` are computed in order. `free_tokens` is the room in the KV cache, idle blocks included.
    """
    count = len(decoding)
    last = [float("inf")] * (count + len(prompts))
    first = [float("inf")] * len(prompts)
    # (tick of the last token, position, prompt and answer at that tick)
    ends = [(left, at, left + context) for at, (left, context) in enumerate(decoding)]
    heapify(ends)
    tick, at = 0, now
    base = sum(each.context for each in decoding)  # context of all, minus tick for each
    computing: list[list[int]] = []  # [uncached left, index]
    waiting = 0
    most, budget_s = params.max_num_seqs, params.max_num_batched_tokens
    fixed_s, prefill_s = params.iteration_s * slowness, params.prefill_token_s * slowness
    sequence_s, context_s = params.decode_sequence_s * slowness, params.context_token_s * slowness
    while ends or computing or waiting < len(prompts):
        decodes = len(ends)
        budget = budget_s - decodes
        prefill = read = 0
        done: list[int] = []  # prompts whose first token comes
        for each in computing:
            share = min(each[0], budget)
            each[0] -= share
            budget -= share
            prefill += share
            read += prompts[each[1]].tokens - each[0]
        while waiting < len(prompts) and budget > 0 and decodes + len(computing) < most:
            uncached, tokens, _output = prompts[waiting]
            if uncached > free_tokens:
                break
            share = min(uncached, budget)
            computing.append([uncached - share, waiting])
            free_tokens -= uncached
            budget -= share
            prefill += share
            read += tokens - uncached + share
            waiting += 1
        context = base + decodes * tick
        if prefill:
            tick += 1
            at += fixed_s + prefill * prefill_s + decodes * sequence_s + (context + read) * context_s
            free_tokens -= decodes
            done = [index for left, index in computing if not left]
            computing = [each for each in computing if each[0]]
        elif decodes:
            steps = ends[0][0] - tick
            tick += steps
            at += steps * (fixed_s + decodes * sequence_s)
            at += (steps * context + decodes * steps * (steps - 1) / 2) * context_s
            free_tokens -= decodes * steps
        else:
            break
        while ends and ends[0][0] <= tick:
            _, position, tokens = heappop(ends)
            last[position] = at
            base -= tokens - tick
            free_tokens += tokens
        for index in done:
            first[index] = at
            _, tokens, output = prompts[index]
            if output == 1:
                last[count + index] = at
                free_tokens += tokens
            else:
                heappush(ends, (tick + output - 1, count + index, tokens + output))
                base += tokens + 1 - tick
    return Expected(first, last)
