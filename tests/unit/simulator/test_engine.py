"""The engine model: tables of single situations, and properties over random traffic."""

import math
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


def test_a_loaded_adapter_stays_until_another_needs_its_slot() -> None:
    params = replace(PLAIN, max_loras=2, lora_load_s=0.5)
    model = engine(params)
    times = {}
    for number, adapter in enumerate(["red", "blue", "red", "green", "red", "blue"]):
        sequence = model.submit(request(f"{number}", 16, 2, adapter=adapter), now=10.0 * number)
        times[number] = first_token_s(model, sequence)
    quick = params.iteration_s + 16 * (params.prefill_token_s + params.context_token_s)
    loads = [round((times[number] - quick) / params.lora_load_s, 6) for number in range(6)]
    assert loads == [1, 1, 0, 1, 0, 1]  # green takes the slot of blue, which was used longer ago than red
    assert model.loaded_adapters() == ["red", "blue"]
    assert model.counters.lora_loads == 4
    assert (model.running_adapters(), model.waiting_adapters()) == (set(), set())


def test_a_load_delays_the_whole_batch() -> None:
    model = engine(replace(PLAIN, lora_load_s=0.5))
    model.submit(request("base", 16, 100), now=0.0)
    model.step(0.0)
    model.submit(request("adapted", 16, 1, adapter="red"), now=0.1)
    gaps = [e.latency_s for e in run(model) if e.sequence.request.request_id == "base"]
    assert sum(gap > 0.5 for gap in gaps) == 1


@pytest.mark.parametrize(("drafted", "rate", "iterations"), [(0, 0.7, 99), (1, 0.5, 66), (3, 0.5, 53)])
def test_speculation_gives_several_tokens_an_iteration(drafted: int, rate: float, iterations: int) -> None:
    params = replace(PLAIN, speculative_tokens=drafted, acceptance_rate=rate)
    model = engine(params)
    sequence = model.submit(request("a", 100, 100), now=0.0)
    events = run(model)
    assert sequence.generated == model.counters.generation_tokens == 100
    assert len(events) - 1 == iterations == math.ceil(99 / params.tokens_per_iteration)
    assert model.counters.draft_tokens == drafted * iterations
    assert model.counters.accepted_tokens == (99 - iterations if drafted else 0)
    assert model.kv_cache_usage == 0.0


def test_a_speed_class_divides_every_time() -> None:
    spans = []
    for speed in (1.0, 2.0):
        model = engine(replace(PLAIN, speed=speed))
        model.submit(request("a"), now=0.0)
        spans.append(run(model)[-1].at)
    assert spans[0] == pytest.approx(2 * spans[1])


def test_a_changed_speed_holds_from_the_next_iteration_on() -> None:
    model = engine()
    model.submit(request("a", 16, 20), now=0.0)
    model.advance(0.05)
    model.set_speed(0.5)
    gaps = [e.latency_s for e in run(model, 0.05)]
    assert gaps[1] == pytest.approx(2 * gaps[0], rel=0.01)
    assert gaps[-1] == pytest.approx(gaps[1], rel=0.01)


def test_a_frozen_engine_gives_nothing_and_goes_on_where_it_stopped() -> None:
    plain, frozen = engine(), engine()
    for model in (plain, frozen):
        model.submit(request("a", 16, 20), now=0.0)
    frozen.advance(0.05)
    frozen.freeze(0.05)
    late = frozen.submit(request("b", 16, 1), now=1.0)
    assert frozen.advance(3.0) == ([], [], None)
    assert (frozen.running, frozen.waiting) == (1, 1)
    frozen.thaw(5.05)
    ended = frozen.advance(100.0).finished
    assert [s.request.request_id for s in ended] == ["b", "a"]
    assert late.started_at is not None
    assert late.started_at > 5.05
    assert ended[1].last_token_at == pytest.approx(5.0 + run(plain)[-1].at, abs=0.01)


def test_prefill_and_decode_on_two_engines() -> None:
    params = replace(PLAIN, kv_transfer_s=0.01, kv_transfer_token_s=1e-4)
    first, second = engine(params), engine(params)
    hashes = tuple(range(62))
    first.submit(replace(request("a", 1000, 1, hashes), remote_decode=True), now=0.0)
    (ended,) = first.advance(10.0).finished
    assert first.kv_cache_usage > 0  # held for the other engine
    at = ended.last_token_at
    moved = second.submit(replace(request("a", 1000, 5, hashes), remote_prefill=True), at)
    assert second.advance(at).next_due == pytest.approx(at + 0.01 + 999e-4)
    assert second.waiting == 1
    run(second, at)
    assert moved.first_token_at == pytest.approx(
        at + 0.01 + 999e-4 + params.iteration_s + params.prefill_token_s + 1000 * params.context_token_s
    )
    assert second.counters.external_hits == 999
    assert first.release("a")
    assert not first.release("a")
    assert (first.kv_cache_usage, second.kv_cache_usage) == (0.0, 0.0)
    again = second.submit(replace(request("b", 1000, 5, hashes), remote_prefill=True), 20.0)
    second.advance(30.0)
    assert again.cached_tokens == 992  # what is here already is not transferred
    assert second.counters.external_hits == 999 + 7


def test_a_run_of_decode_steps_takes_the_sum_over_a_growing_context() -> None:
    model = engine(replace(PLAIN, context_token_s=1e-5))
    for name in ("a", "b"):
        model.submit(request(name, 100, 1001), now=0.0)
    params = model.params
    ended = model.advance(1e6).finished
    prefill_s = params.iteration_s + 200 * (params.prefill_token_s + params.context_token_s)
    steps = 1000 * (params.iteration_s + 2 * params.decode_sequence_s)
    contexts = 2 * sum(range(101, 1101)) * params.context_token_s
    assert [s.last_token_at for s in ended] == pytest.approx([prefill_s + steps + contexts] * 2)


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
        ("speed", 0.0),
        ("acceptance_rate", 1.0),
        ("speculative_tokens", -1),
        ("max_num_batched_tokens", 255),
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
        private = sum(model.blocks_of(s) - len(s.holding.shared) for s in sequences)
        assert min(private, model.pool.free, model.pool.available) >= 0
        assert model.pool.used == model.pool.shared + private
        assert model.running <= SMALL.max_num_seqs
        assert step.batch_tokens <= SMALL.max_num_batched_tokens
    events += run(model, now)
    assert model.pool.used == 0
    return events, sequences, aborted


@settings(max_examples=100, deadline=None)
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


# Jumps: `advance` gives what single steps give.

Action = tuple[str, float, int, int, int]


@st.composite
def schedule(draw: st.DrawFn) -> tuple[EngineParams, list[Action]]:
    """Return an engine and (action, seconds since the one before, prompt, output, family) tuples."""
    params = EngineParams(
        block_size=draw(st.integers(1, 5)),
        num_gpu_blocks=draw(st.integers(16, 60)),
        max_num_seqs=draw(st.integers(1, 5)),
        max_num_batched_tokens=draw(st.integers(20, 40)),
        max_model_len=200,
        max_loras=draw(st.integers(1, 2)),
        speculative_tokens=draw(st.sampled_from([0, 0, 1, 3])),
        attention_pair_s=draw(st.sampled_from([0.0, 1e-5])),
        context_token_s=draw(st.sampled_from([0.0, 1e-4])),
        jitter=draw(st.sampled_from([0.0, 0.3])),
    )
    names = [
        "submit",
        "submit",
        "submit",
        "look",
        "abort",
        "adapter",
        "remote",
        "hold",
        "free",
        "slow",
        "freeze",
    ]
    one = st.tuples(
        st.sampled_from(names), st.floats(0, 0.4), st.integers(1, 30), st.integers(1, 100), st.integers(0, 3)
    )
    return params, draw(st.lists(one, max_size=30))


def act(model: Engine, index: int, action: Action, now: float, made: list[Sequence]) -> None:
    kind, _, prompt, output, family = action
    hashes = tuple(1000 * family + block for block in range((prompt + output) // model.params.block_size))
    if kind in {"submit", "adapter", "remote", "hold"}:
        new = Request(
            request_id=f"r{index}",
            prompt_tokens=prompt,
            output_tokens=1 if kind == "hold" else output,
            block_hashes=hashes,
            adapter=f"adapter-{family}" if kind == "adapter" else None,
            remote_prefill=kind == "remote",
            remote_decode=kind == "hold",
        )
        if prompt + new.output_tokens <= model.params.longest_sequence:
            made.append(model.submit(new, now))
    elif kind == "slow":
        model.set_speed(1 / (1 + family))
    elif kind == "freeze":
        if model.frozen:
            model.thaw(now)
        else:
            model.freeze(now)
    elif kind == "abort" and made:
        model.abort(made[prompt % len(made)].request.request_id)
    elif kind == "free":
        for sequence in made:
            model.release(sequence.request.request_id)


def state(model: Engine, made: list[Sequence]) -> object:
    """Return all that a caller can read."""
    progress = [
        (
            s.place,
            s.generated,
            s.last_token_at,
            s.first_token_at,
            s.started_at,
            s.cached_tokens,
            s.preemptions,
        )
        for s in made
    ]
    return (
        progress, model.pool.used, model.pool.free, model.pool.shared, model.running, model.waiting,
        model.running_adapters(), model.waiting_adapters(), model.loaded_adapters(), model.counters,
        [model.blocks_of(s) for s in made],
    )  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(schedule())
def test_a_jump_gives_to_the_last_bit_what_single_steps_give(case: tuple[EngineParams, list[Action]]) -> None:
    params, actions = case
    jumping, stepping = engine(params, 3), engine(params, 3)
    jumped: list[Sequence] = []
    stepped: list[Sequence] = []
    finished: list[str] = []
    done: list[str] = []

    def jump(until: float) -> None:
        finished.extend(s.request.request_id for s in jumping.advance(until).finished)

    def step(until: float) -> None:
        while True:
            one = stepping.step(until)
            done.extend(e.sequence.request.request_id for e in one.events if e.sequence.finished)
            if one.next_time is None or one.next_time > until:
                return

    now = 0.0
    for index, action in enumerate(
        [*actions, ("look", 1e4, 1, 1, 0), ("thaw", 0, 1, 1, 0), ("look", 1e4, 1, 1, 0)]
    ):
        now += action[1]
        jump(now)
        step(now)
        assert state(jumping, jumped) == state(stepping, stepped)
        if action[0] == "thaw":
            jumping.thaw(now)
            stepping.thaw(now)
        act(jumping, index, action, now, jumped)
        act(stepping, index, action, now, stepped)
    assert sorted(finished) == sorted(done)  # the order of equal times differs
    assert jumping.pool.used == jumping.pool.shared + sum(
        jumping.blocks_of(s) - len(s.holding.shared) for s in jumped
    )


@settings(max_examples=100, deadline=None)
@given(schedule(), st.integers(1, 7))
def test_a_caller_that_looks_often_gets_what_one_gets_that_comes_when_due(
    case: tuple[EngineParams, list[Action]], looks: int
) -> None:
    params, actions = case
    results = []
    for often in (False, True):
        model, now = engine(params, 3), 0.0
        made: list[Sequence] = []
        for index, action in enumerate(actions):
            for part in range(looks if often else 0):
                model.advance(now + action[1] * part / looks)
            now += action[1]
            due = model.advance(now).next_due
            assert due is None or due > now
            act(model, index, action, now, made)
            model.advance(now)
        model.thaw(now)
        while (due := model.advance(now).next_due) is not None:
            assert due > now
            now = due
        results.append(state(model, made))
    assert results[0] == results[1]
