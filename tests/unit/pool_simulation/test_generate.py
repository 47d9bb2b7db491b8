"""What the generated streams of a workload file ask, over whole runs."""

import statistics
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from pool_simulation.workload import SimulatedRequest
from pool_simulation.workloads import spec, start
from pool_simulation.workloads.presets import PRESETS
from workload_runs import requests, workload

ONE = "duration_s: 1000\nstreams:\n- {name: a, prompt_tokens: 10, output_tokens: 5, arrivals: %s}\n"
MIXED = """
duration_s: 300
model: base
streams:
- {name: chat, preset: chat, arrivals: {type: poisson, rate: 1}, tenants: {count: 4, zipf: 1}}
- {name: rag, preset: rag, arrivals: {type: gamma, rate: 1, cv: 2}, adapters: {count: 2, base_share: 0.5}}
- {name: agents, preset: agent, arrivals: {type: closed_loop, clients: 3}}
"""


def by_session(given: list[SimulatedRequest]) -> list[list[SimulatedRequest]]:
    sessions: defaultdict[str | None, list[SimulatedRequest]] = defaultdict(list)
    for request in given:
        sessions[request.session].append(request)
    return list(sessions.values())


def test_equal_seeds_give_equal_bytes_and_others_do_not() -> None:
    first = repr(requests(workload(MIXED, seed=3)))
    assert first == repr(requests(workload(MIXED, seed=3)))
    assert first != repr(requests(workload(MIXED, seed=4)))


def test_request_ids_and_new_segments_are_unique() -> None:
    given = requests(workload(MIXED))
    assert len({request.request_id for request in given}) == len(given) > 500
    answers = [request.output_segment for request in given]
    last = [request.prompt[-1].segment_id for request in given]
    assert len({*answers, *last}) == 2 * len(given)


def test_a_session_is_the_same_however_fast_the_pool_answers() -> None:
    def contents(answer_s: float) -> dict[str, object]:
        given = requests(workload(MIXED), answer_s=answer_s)
        return {each.request_id: (each.prompt, each.output_tokens, each.tenant) for each in given}

    fast, slow = contents(0.1), contents(20.0)
    common = fast.keys() & slow.keys()
    assert len(common) > 300
    assert all(fast[name] == slow[name] for name in common)


def test_a_stream_is_the_same_whatever_stands_beside_it() -> None:
    alone = MIXED[: MIXED.index("- {name: rag")]

    def chats(text: str) -> list[object]:
        given = requests(workload(text))
        return [(each.request_id, each.arrival_s, each.prompt) for each in given if each.stream == "chat"]

    assert chats(alone) == chats(MIXED)


@pytest.mark.parametrize(
    ("arrivals", "cv"),
    [
        pytest.param("{type: constant, rate: 4}", 0.0, id="constant"),
        pytest.param("{type: poisson, rate: 4}", 1.0, id="poisson"),
        pytest.param("{type: gamma, rate: 4, cv: 3}", 3.0, id="bursty"),
    ],
)
def test_arrivals_have_their_rate_and_burstiness(arrivals: str, cv: float) -> None:
    times = [request.arrival_s for request in requests(workload(ONE % arrivals))]
    gaps = [after - before for before, after in pairwise(times)]
    assert len(times) == pytest.approx(4000, rel=0.2)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(cv, rel=0.15, abs=1e-6)
    assert max(times) < 1000


def test_a_diurnal_rate_peaks_after_half_a_period() -> None:
    arrivals = "{type: diurnal, rate: 10, period_s: 1000, peak_to_trough: 9}"
    times = [request.arrival_s for request in requests(workload(ONE % arrivals))]
    trough = sum(time < 100 or time >= 900 for time in times)
    peak = sum(400 <= time < 600 for time in times)
    assert len(times) == pytest.approx(10_000, rel=0.05)
    # Means of 10 * (1 -+ 0.8 * cos) over a fifth of the period: 2.52 and 17.48 a second.
    assert trough == pytest.approx(504, rel=0.2)
    assert peak == pytest.approx(3496, rel=0.1)


def test_scale_multiplies_rates_and_clients() -> None:
    text = ONE % "{type: poisson, rate: 2}"
    assert len(requests(workload(text, scale=3.0))) == pytest.approx(6000, rel=0.1)
    loop = "duration_s: 10\nstreams:\n- {name: a, prompt_tokens: 1, output_tokens: 1, "
    loop += "arrivals: {type: closed_loop, clients: 4, ramp_s: 0}}\n"
    assert sum(request.arrival_s == 0 for request in requests(workload(loop, scale=2.5))) == 10


def test_a_closed_loop_keeps_its_clients_busy_and_no_more() -> None:
    arrivals = "{type: closed_loop, clients: 5, think_s: 1, ramp_s: 0}"
    given = requests(workload(ONE % arrivals), answer_s=3.0)
    assert len(given) == 5 * 250
    starts = Counter(request.arrival_s for request in given)
    assert set(starts.values()) == {5}
    assert sorted(starts) == [4.0 * step for step in range(250)]


def test_a_closed_loop_goes_on_after_a_refusal_and_a_chat_does_not() -> None:
    loop = ONE % "{type: closed_loop, clients: 2, think_s: 1}"
    assert len(requests(workload(loop), served=False)) > 900
    chat = "duration_s: 100\nstreams:\n- {name: c, preset: chat, arrivals: {type: poisson, rate: 5}}\n"
    refused = requests(workload(chat), served=False)
    assert {request.request_id.rpartition("/")[2] for request in refused} == {"0"}
    assert len(requests(workload(chat))) > 1.5 * len(refused)


def test_a_client_that_does_not_think_pauses_after_a_refusal() -> None:
    loop = ONE % "{type: closed_loop, clients: 2, ramp_s: 0}"
    given = requests(workload(loop), answer_s=0.0, served=False)
    assert [request.arrival_s for request in given[:6]] == [0, 0, 1, 1, 2, 2]


def test_the_priorities_of_a_pools_objectives_replace_those_of_the_file() -> None:
    text = MIXED.replace("name: chat,", "name: chat, objective: interactive, priority: 1,")
    prepared = start.prepare(spec.load(text), Path())
    for priorities, chats in (({}, 1), ({"interactive": 9}, 9)):
        arrivals = prepared.start(1, priorities=priorities).arrivals()
        assert {each.stream: each.priority for each in arrivals} == {"chat": chats, "rag": 0, "agents": 0}


def test_each_turn_of_a_chat_repeats_all_before_it() -> None:
    sessions = by_session([r for r in requests(workload(MIXED)) if r.stream == "chat"])
    assert max(map(len, sessions)) > 3
    for session in sessions:
        for before, after in pairwise(session):
            kept = (*before.prompt, (before.output_segment, before.output_tokens))
            assert after.prompt[: len(kept)] == kept
            assert len(after.prompt) == len(kept) + 1
            assert after.arrival_s > before.arrival_s + 1.0  # the answer took 1 s, then comes the think time


def test_chats_share_system_prompts_by_popularity() -> None:
    text = """
duration_s: 500
streams:
- name: c
  arrivals: {type: poisson, rate: 8}
  prompt_tokens: 10
  output_tokens: 5
  system_prompts: {count: 3, zipf: 1, tokens: {type: uniform, low: 100, high: 900}}
"""
    uses = Counter(request.prompt[0] for request in requests(workload(text)))
    shares = [count / uses.total() for _, count in uses.most_common()]
    assert shares == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.03)


def test_tenants_and_adapters_have_their_shares() -> None:
    text = """
duration_s: 500
streams:
- name: c
  arrivals: {type: poisson, rate: 8}
  prompt_tokens: 10
  output_tokens: 5
  tenants: {names: {acme: 3, beta: 1}}
  adapters: {names: {french: 1, legal: 1}, base_share: 0.5}
  objective: interactive
  priority: 2
  slo: {ttft_ms: 300, tpot_ms: 40}
"""
    given = requests(workload(text))
    share = 1 / len(given)
    tenants = Counter(request.tenant for request in given)
    assert tenants["acme"] * share == pytest.approx(0.75, abs=0.03)
    assert tenants["beta"] * share == pytest.approx(0.25, abs=0.03)
    loras = Counter(request.adapter for request in given)
    assert loras[None] * share == pytest.approx(0.5, abs=0.03)
    assert loras["french"] * share == pytest.approx(0.25, abs=0.03)
    one = given[0]
    assert (one.objective, one.priority, one.slo_ttft_ms, one.slo_tpot_ms) == ("interactive", 2, 300, 40)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_makes_requests_within_its_bounds(name: str) -> None:
    text = f"duration_s: 400\nstreams:\n- {{name: s, preset: {name}, arrivals: {{type: poisson, rate: 2}}}}\n"
    given = requests(workload(text))
    longest = PRESETS[name].get("max_prompt_tokens", 40_000)
    assert all(1 <= request.prompt_tokens <= longest and request.output_tokens >= 1 for request in given)


# What the sources in presets.py publish.
@pytest.mark.parametrize(
    ("name", "prompt", "output", "average"),
    [
        pytest.param("sharegpt", 161, 338, statistics.mean, id="means of ShareGPT (vLLM)"),
        pytest.param("conversation", 1020, 129, statistics.median, id="medians of Azure's conversation"),
        pytest.param("conversation", 1155, 211, statistics.mean, id="means of Azure's conversation"),
        pytest.param("code", 1500, 13, statistics.median, id="medians of Azure's coding"),
        pytest.param("code", 2048, 28, statistics.mean, id="means of Azure's coding"),
        pytest.param("long-context", 7059, 208, statistics.median, id="medians of arxiv (Sarathi)"),
    ],
)
def test_a_preset_has_the_lengths_that_its_source_gives(
    name: str, prompt: float, output: float, average: object
) -> None:
    assert callable(average)
    text = (
        f"duration_s: 4000\nstreams:\n- {{name: s, preset: {name}, arrivals: {{type: poisson, rate: 2}}}}\n"
    )
    given = requests(workload(text))
    assert average([request.prompt_tokens for request in given]) == pytest.approx(prompt, rel=0.06)
    assert average([request.output_tokens for request in given]) == pytest.approx(output, rel=0.1)


def test_three_percent_of_the_rag_documents_serve_sixty_percent_of_the_uses() -> None:
    text = "duration_s: 2000\nstreams:\n- {name: s, preset: rag, arrivals: {type: poisson, rate: 20}}\n"
    uses: Counter[int] = Counter()
    for request in requests(workload(text)):
        uses.update(segment.segment_id for segment in request.prompt[1:-1])
    popular = sum(count for _, count in uses.most_common(300))
    assert popular / uses.total() == pytest.approx(0.6, abs=0.03)
