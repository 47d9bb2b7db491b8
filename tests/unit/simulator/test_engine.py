"""The engine model: tables of single situations, and properties over random traffic."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server_sim.engine import Engine, Event, Request, Sequence
from model_server_sim.params import EngineParams

PLAIN = EngineParams(jitter=0.0)
SMALL = EngineParams(
    block_size=4, num_gpu_blocks=12, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=64, max_loras=1
)


def engine(params: EngineParams = PLAIN, seed: int = 0) -> Engine:
    return Engine(params, random.Random(seed).random)


def request(
    name: str, prompt: int = 100, output: int = 10, hashes: tuple[int, ...] = (), adapter: str | None = None
) -> Request:
    return Request(
        request_id=name, prompt_tokens=prompt, output_tokens=output, block_hashes=hashes, adapter=adapter
    )


def run(model: Engine, now: float = 0.0, steps: int = 100_000) -> list[Event]:
    """Step until nothing is due; return all events."""
    events: list[Event] = []
    for _ in range(steps):
        step = model.step(now)
        events += step.events
        if step.next_time is None:
            return events
        now = step.next_time
    pytest.fail(f"not idle after {steps} steps")


def first_token_s(model: Engine, sequence: Sequence) -> float:
    run(model, sequence.arrived_at)
    assert sequence.first_token_at is not None
    return sequence.first_token_at - sequence.arrived_at


def test_an_idle_engine_has_nothing_due() -> None:
    step = engine().step(1.0)
    assert (step.events, step.next_time, step.batch_tokens) == ([], None, 0)


def test_a_lone_request_takes_its_prefill_and_then_an_iteration_a_token() -> None:
    model = engine()
    sequence = model.submit(request("a", prompt=1000, output=3), now=5.0)
    events = run(model, now=5.0)
    prefill_s = PLAIN.iteration_s + 1000 * (PLAIN.prefill_token_s + PLAIN.context_token_s)
    decode_s = PLAIN.iteration_s + PLAIN.decode_sequence_s + 1001 * PLAIN.context_token_s
    assert [e.latency_s for e in events[:2]] == pytest.approx([prefill_s, decode_s])
    assert [e.at for e in events][:2] == pytest.approx([5.0 + prefill_s, 5.0 + prefill_s + decode_s])
    assert len(events) == 3
    assert sequence.finished
    assert model.kv_cache_usage == 0.0


def test_a_late_caller_gets_the_same_times_as_a_punctual_one() -> None:
    punctual, late = engine(), engine()
    for model in (punctual, late):
        model.submit(request("a"), now=1.0)
    on_time = run(punctual, 1.0)
    late_events: list[Event] = []
    while (step := late.step(99.0)).next_time is not None or step.events:
        late_events += step.events
    assert [e.at for e in late_events] == [e.at for e in on_time]


def test_a_request_never_runs_before_it_arrived() -> None:
    model = engine()
    first = model.submit(request("a", output=50), now=0.0)
    model.step(0.0)
    second = model.submit(request("b"), now=0.05)  # the caller has not stepped since 0.0
    run(model, 10.0)
    assert first.started_at == 0.0
    assert second.started_at is not None
    assert second.started_at >= 0.05


def test_time_to_first_token_grows_with_the_queue() -> None:
    times = []
    for ahead in (0, 4, 16):
        model = engine(replace(PLAIN, max_num_seqs=1))
        for index in range(ahead):
            model.submit(request(f"ahead-{index}"), now=0.0)
        times.append(first_token_s(model, model.submit(request("x"), now=0.0)))
    assert times[0] < times[1] / 4 < times[2] / 15


def test_a_token_takes_longer_in_a_larger_batch() -> None:
    gaps = []
    for size in (1, 64):
        model = engine()
        for index in range(size):
            model.submit(request(f"r{index}", prompt=64), now=0.0)
        gaps.append(run(model)[-1].latency_s)
    assert gaps[0] < gaps[1]


def test_a_prompt_over_the_token_budget_goes_in_chunks_beside_decoding() -> None:
    model = engine(replace(PLAIN, max_num_batched_tokens=512))
    model.submit(request("short", prompt=10, output=100), now=0.0)
    model.step(0.0)
    long = model.submit(request("long", prompt=2000, output=2), now=0.001)
    events = run(model)
    before = [e for e in events if e.at < (long.first_token_at or 0.0)]
    assert {e.sequence.request.request_id for e in before} == {"short"}
    assert len(before) == 4  # its prefill, then one a chunk; the last chunk ends with long's first token


@pytest.mark.parametrize(
    ("hashes", "cached"),
    [
        pytest.param(tuple(range(62)), 62 * 16, id="whole-prefix"),
        pytest.param((*range(30), *range(100, 132)), 30 * 16, id="half"),
        pytest.param((99, *range(1, 62)), 0, id="first-block-differs"),
    ],
)
def test_cache_hits_shorten_prefill(hashes: tuple[int, ...], cached: int) -> None:
    model = engine()
    cold = first_token_s(model, model.submit(request("cold", 1000, hashes=tuple(range(62))), now=0.0))
    sequence = model.submit(request("warm", 1000, hashes=hashes), now=100.0)
    warm = first_token_s(model, sequence)
    assert sequence.cached_tokens == cached
    assert cold - warm == pytest.approx(cached * PLAIN.prefill_token_s)
    assert model.counters.prefix_hits == cached
    assert model.counters.prefix_queries == 2000


def test_the_last_prompt_token_is_computed_even_if_all_blocks_are_cached() -> None:
    model = engine()
    for name in ("a", "b"):
        sequence = model.submit(request(name, 32, hashes=(1, 2)), now=0.0)
        run(model)
    assert sequence.cached_tokens == 16


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    model = engine(SMALL)
    for name, first in (("a", 100), ("b", 200), ("c", 100), ("d", 300)):  # c refreshes a's prefix
        model.submit(request(name, 20, 1, tuple(range(first, first + 5))), now=0.0)
        run(model)
    kept = model.submit(request("x", 20, 1, tuple(range(100, 105))), now=0.0)
    run(model)
    lost = model.submit(request("y", 20, 1, tuple(range(200, 205))), now=0.0)
    run(model)
    assert (kept.cached_tokens, lost.cached_tokens) == (16, 4)  # the end of b's prefix was evicted first


def test_the_latest_sequence_is_preempted_when_blocks_run_out_and_still_finishes() -> None:
    model = engine(SMALL)
    early = model.submit(request("early", 16, 30), now=0.0)
    late = model.submit(request("late", 16, 30), now=0.0)
    events = run(model)
    assert (early.preemptions, late.preemptions > 0) == (0, True)
    assert model.counters.preemptions == late.preemptions
    assert len(events) == 60


def test_adapters_beyond_the_limit_wait_while_others_pass() -> None:
    model = engine(SMALL)
    for name, adapter in (("a", "red"), ("b", "blue"), ("c", None)):
        model.submit(request(name, 4, 20, adapter=adapter), now=0.0)
    model.step(0.0)
    assert (model.running_adapters(), model.waiting_adapters(), model.running) == ({"red"}, {"blue"}, 2)
    assert len(run(model)) == 60


@pytest.mark.parametrize("when", ["waiting", "running"])
def test_an_aborted_request_gives_its_blocks_back_at_once(when: str) -> None:
    model = engine()
    model.submit(request("a", 160), now=0.0)
    if when == "running":
        model.step(0.0)
        assert model.kv_cache_usage > 0
    assert model.abort("a")
    assert not model.abort("a")
    assert (model.kv_cache_usage, model.running, model.waiting) == (0.0, 0, 0)
    assert run(model) == []


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        pytest.param(request("a", prompt=0), "at least one prompt token", id="no-prompt"),
        pytest.param(request("a", output=0), "one output token", id="no-output"),
        pytest.param(request("a", prompt=40, output=9), "limit of 48", id="more-than-all-blocks"),
        pytest.param(request("here", 1, 1), "already", id="twice"),
    ],
)
def test_a_request_that_could_never_be_served_is_refused(bad: Request, message: str) -> None:
    model = engine(SMALL)
    model.submit(request("here", 1, 1), now=0.0)
    with pytest.raises(ValueError, match=message):
        model.submit(bad, now=0.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_size", 0),
        ("max_loras", -1),
        ("iteration_s", 0.0),
        ("prefill_token_s", float("nan")),
        ("jitter", 1.0),
    ],
)
def test_parameters_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        EngineParams(**{field: value})  # type: ignore[arg-type]


def test_jitter_stays_in_its_band_and_follows_the_seed() -> None:
    def gaps(seed: int) -> list[float]:
        model = engine(replace(PLAIN, jitter=0.1), seed)
        model.submit(request("a", 16, 50), now=0.0)
        return [e.latency_s for e in run(model)]

    steady = engine()
    steady.submit(request("a", 16, 50), now=0.0)
    ratios = [noisy / plain.latency_s for noisy, plain in zip(gaps(1), run(steady), strict=True)]
    assert gaps(1) == gaps(1) != gaps(2)
    assert 0.9 <= min(ratios) < 1 < max(ratios) <= 1.1


@st.composite
def traffic(draw: st.DrawFn) -> list[tuple[str, int, int, int, bool]]:
    """Return (action, prompt, output, family of the prefix, with adapter) tuples."""
    action = st.sampled_from(["submit", "submit", "step", "step", "abort"])
    one = st.tuples(action, st.integers(1, 30), st.integers(1, 18), st.integers(0, 3), st.booleans())
    return draw(st.lists(one, max_size=60))


def replay(actions: list[tuple[str, int, int, int, bool]]) -> tuple[list[Event], list[Sequence], set[str]]:
    """Drive a small engine, checking at every turn that no block is lost or made."""
    model, now = engine(SMALL, 7), 0.0
    events: list[Event] = []
    sequences: list[Sequence] = []
    aborted: set[str] = set()
    for index, (action, prompt, output, family, with_adapter) in enumerate(actions):
        if action == "submit":
            hashes = tuple(1000 * family + block for block in range(prompt // SMALL.block_size))
            adapter = f"adapter-{family}" if with_adapter else None
            sequences.append(model.submit(request(f"r{index}", prompt, output, hashes, adapter), now))
        elif action == "abort" and sequences:
            name = sequences[index % len(sequences)].request.request_id
            if model.abort(name):
                aborted.add(name)
        step = model.step(now)
        events += step.events
        now = step.next_time or now
        private = sum(s.holding.private for s in sequences)
        assert min(private, model.pool.free, model.pool.available) >= 0
        assert model.pool.used == model.pool.shared + private
        assert model.running <= SMALL.max_num_seqs
        assert step.batch_tokens <= SMALL.max_num_batched_tokens
    events += run(model, now)
    assert model.pool.used == 0
    return events, sequences, aborted


@settings(max_examples=150, deadline=None)
@given(traffic())
def test_blocks_are_conserved_and_every_request_finishes(
    actions: list[tuple[str, int, int, int, bool]],
) -> None:
    events, sequences, aborted = replay(actions)
    assert [e.at for e in events] == sorted(e.at for e in events)
    for sequence in sequences:
        if sequence.request.request_id not in aborted:
            mine = [e for e in events if e.sequence is sequence]
            assert len(mine) == sequence.request.output_tokens
            assert sum(e.latency_s for e in mine) == pytest.approx(mine[-1].at - sequence.arrived_at)


@settings(max_examples=25, deadline=None)
@given(traffic())
def test_equal_calls_give_equal_events(actions: list[tuple[str, int, int, int, bool]]) -> None:
    first, second = (replay(actions)[0] for _ in range(2))
    assert [(e.sequence.request, e.at) for e in first] == [(e.sequence.request, e.at) for e in second]
