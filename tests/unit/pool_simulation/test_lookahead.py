"""A look ahead and the engine itself give the same times when nothing else arrives."""

import random

import pytest

from model_server_sim.engine import Request
from model_server_sim.params import EngineParams
from pool_simulation.lookahead import Decoding, Prompt, look_ahead
from pool_simulation.server import SimulatedServer

EXACT = EngineParams(
    jitter=0.0, max_num_seqs=16, max_num_batched_tokens=1_024, attention_pair_s=1e-9, speed=1.5
)


def run(server: SimulatedServer, now: float, until: float) -> float:
    due = server.advance(now).next_due
    while due is not None and due < until:
        now = due
        due = server.advance(now).next_due
    return now


@pytest.mark.parametrize("count", [1, 5, 40], ids=["one", "some", "more than run at once"])
@pytest.mark.parametrize("slowness", [1.0, 2.5])
def test_the_look_ahead_and_the_engine_agree(count: int, slowness: float) -> None:
    rng = random.Random(count)
    server = SimulatedServer(0, EXACT, "seed")
    server.slow_down(slowness)
    sequences = [
        server.submit(
            Request(
                request_id=str(number),
                prompt_tokens=rng.randint(1, 3_000),
                output_tokens=rng.randint(1, 200),
            ),
            0.0,
        )
        for number in range(count)
    ]
    prompts = [
        Prompt(each.request.prompt_tokens, each.request.prompt_tokens, each.request.output_tokens)
        for each in sequences
    ]
    expected = look_ahead(EXACT, 0.0, 0, [], prompts, server.engine.pool.available * 16, slowness)
    run(server, 0.0, 1e9)
    assert [each.first_token_at for each in sequences] == pytest.approx(expected.first)
    assert [each.last_token_at for each in sequences] == pytest.approx(expected.last)
    assert expected.sum_of_last() == pytest.approx(sum(each.last_token_at for each in sequences))


@pytest.mark.parametrize("more", [0, 3])
def test_decoding_requests_go_on_from_where_they_are(more: int) -> None:
    server = SimulatedServer(0, EXACT, "seed")
    sequences = [
        server.submit(Request(request_id=str(n), prompt_tokens=100, output_tokens=50 * (n + 1)), 0.0)
        for n in range(4)
    ]
    begun = run(server, 0.0, 0.4)
    tick = server.engine.counters.iterations
    decoding = [
        Decoding(
            tick + each.request.output_tokens - each.generated,
            each.request.prompt_tokens + each.generated - tick,
        )
        for each in sequences
        if not each.finished
    ]
    assert 0 < len(decoding) < 4
    added = [
        server.submit(Request(request_id=f"+{n}", prompt_tokens=2_000, output_tokens=40), begun)
        for n in range(more)
    ]
    prompts = [Prompt(2_000, 2_000, 40)] * more
    expected = look_ahead(EXACT, begun, tick, decoding, prompts, server.engine.pool.available * 16)
    run(server, begun, 1e9)
    old = sequences[-len(decoding) :]
    # A request that arrives as an iteration begins waits for its end, which the look ahead leaves out.
    within_an_iteration = pytest.approx(expected.decoded, abs=0.01 if more else 1e-9)
    assert [each.last_token_at for each in old] == within_an_iteration
    assert [each.first_token_at for each in added] == pytest.approx(expected.first, abs=0.01)
    assert [each.last_token_at for each in added] == pytest.approx(expected.last, abs=0.01)


def test_a_prompt_that_never_fits_has_no_end() -> None:
    expected = look_ahead(EXACT, 0.0, 0, [], [Prompt(1_000, 1_000, 10)], free_tokens=999)
    assert expected.last == [float("inf")]
