"""Runs one engine ahead: when each of its requests has its first and its last token if none is added.

It follows the engine's rules and its cost of an iteration, with a sequence as counts: last tick, context,
uncached prompt. A tick is one iteration of the engine, which gives each decoding request one token. Once no
prompt is left to compute, all ends follow from sums over the sorted ticks. Not modelled are preemption, the
loading of adapters, speculative decoding, transfers and jitter. Pure.
"""

from bisect import insort
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_server_sim.params import EngineParams

_INFINITY = float("inf")


class Decoding(NamedTuple):
    """A request that has had its first token."""

    end: int
    """Tick of its last token."""
    offset: int
    """Tokens of prompt and answer so far, minus the present tick; the same at every tick."""


class Prompt(NamedTuple):
    """A request whose prompt has to be computed."""

    uncached: int
    """Prompt tokens to compute, at least 1."""
    tokens: int
    """Prompt tokens."""
    output: int


class Expected(NamedTuple):
    """Times on the caller's clock."""

    decoded: NDArray[np.float64]
    """The last tokens of the decoding requests, in the order given."""
    first: list[float]
    """The first tokens of the prompts, in the order given; infinity for one that never fits."""
    last: list[float]
    """The last tokens of the prompts."""

    def sum_of_last(self) -> float:
        """Return the sum of all last tokens' times."""
        return float(self.decoded.sum()) + sum(self.last)


def look_ahead(
    params: EngineParams,
    now: float,
    tick: int,
    decoding: Sequence[Decoding],
    prompts: Sequence[Prompt],
    free_tokens: int,
    slowness: float = 1.0,
) -> Expected:
    """Return when the requests get their tokens.

    `tick` is the present one. `decoding` is sorted, `prompts` are computed in order. `free_tokens` is the
    room in the KV cache, idle blocks included. An iteration takes `slowness` times as long as `params` say.
    """
    slowness /= params.speed
    fixed_s, prefill_s = params.iteration_s * slowness, params.prefill_token_s * slowness
    sequence_s, context_s = params.decode_sequence_s * slowness, params.context_token_s * slowness
    pair_s = params.attention_pair_s * slowness
    count = len(decoding)
    decoded = np.empty(count)
    first = [_INFINITY] * len(prompts)
    last = [_INFINITY] * len(prompts)
    # (tick of the last token, context minus tick, position: of `decoding`, then of `prompts`)
    left = [(each[0], each[1], position) for position, each in enumerate(decoding)]
    offsets = sum([each[1] for each in decoding])
    at, gone = now, 0
    computing: list[list[int]] = []  # [uncached left, position in prompts]
    waiting = 0
    while computing or waiting < len(prompts):
        decodes = len(left) - gone
        budget = params.max_num_batched_tokens - decodes
        prefill = read = pairs = 0
        for each in computing:
            share = min(each[0], budget)
            pairs += share * (prompts[each[1]].tokens - each[0]) + share * (share + 1) // 2
            each[0] -= share
            budget -= share
            prefill += share
            read += prompts[each[1]].tokens - each[0]
        while waiting < len(prompts) and budget > 0 and decodes + len(computing) < params.max_num_seqs:
            uncached, tokens, _ = prompts[waiting]
            if uncached > free_tokens:
                break
            share = min(uncached, budget)
            computing.append([uncached - share, waiting])
            pairs += share * (tokens - uncached) + share * (share + 1) // 2
            free_tokens -= uncached
            budget -= share
            prefill += share
            read += tokens - uncached + share
            waiting += 1
        context = offsets + decodes * tick
        if prefill:
            tick += 1
            at += fixed_s + prefill * prefill_s + pairs * pair_s
            at += decodes * sequence_s + (context + read) * context_s
            free_tokens -= decodes
        elif decodes:
            steps = left[gone][0] - tick
            tick += steps
            at += steps * (fixed_s + decodes * sequence_s)
            at += (steps * context + decodes * steps * (steps - 1) / 2) * context_s
            free_tokens -= decodes * steps
        else:
            break
        while gone < len(left) and left[gone][0] <= tick:
            _, offset, position = left[gone]
            if position < count:
                decoded[position] = at
            else:
                last[position - count] = at
            offsets -= offset
            free_tokens += offset + tick
            gone += 1
        for each in [each for each in computing if not each[0]]:
            computing.remove(each)
            position = each[1]
            first[position] = at
            _, tokens, output = prompts[position]
            if output == 1:
                last[position] = at
                free_tokens += tokens
            else:
                insort(left, (tick + output - 1, tokens + 1 - tick, count + position), lo=gone)
                offsets += tokens + 1 - tick
    _only_decode(left[gone:], tick, at, (fixed_s, sequence_s, context_s), decoded, last)
    return Expected(decoded, first, last)


def _only_decode(
    left: list[tuple[int, int, int]],
    tick: int,
    at: float,
    costs: tuple[float, float, float],
    decoded: NDArray[np.float64],
    last: list[float],
) -> None:
    """Write the ends of `left`, which is sorted, when nothing is computed beside it."""
    if not left:
        return
    fixed_s, sequence_s, context_s = costs
    ends, offset, position = np.array(left).T
    begins = np.empty_like(ends)
    begins[0] = tick
    begins[1:] = ends[:-1]
    steps = ends - begins
    alive = np.arange(ends.size, 0, -1)
    context = offset[::-1].cumsum()[::-1] + alive * begins
    seconds = steps * (fixed_s + alive * sequence_s)
    seconds += (steps * context + alive * steps * (steps - 1) / 2) * context_s
    times = at + seconds.cumsum()
    count = decoded.size
    old = position < count
    decoded[position[old]] = times[old]
    for where, when in zip(position[~old].tolist(), times[~old].tolist(), strict=True):
        last[where - count] = when
