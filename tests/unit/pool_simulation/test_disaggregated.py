"""Pools with prefill and decode servers: where prompts are computed, and what the faults of either do."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endpoint_picker.config.registry import Registry
from model_server_sim.params import EngineParams
from pool_simulation.faults import Fault, PickerRestarts, ServerDies, ServerSlows
from pool_simulation.picker_policy import PickerPolicy, PickerSettings
from pool_simulation.results import Fate
from pool_simulation.simulation import PREFILL_LIMIT_S, Simulation
from pool_simulation.study.groups import Group, shared_out
from pool_simulation.study.pool_file import parse
from pool_simulation.study.runs import Point, Setup, run
from pool_simulation.workloads.spec import load
from pool_simulation.workloads.start import prepare
from pool_workloads import Steady

ENGINE = EngineParams(max_num_seqs=32, num_gpu_blocks=4_000, jitter=0.0)
CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: decode-filter}
- {type: prefill-filter}
- {type: queue-scorer}
- {type: prefix-cache-scorer}
- {type: prefix-based-pd-decider, parameters: {nonCachedTokens: 64}}
- {type: disagg-profile-handler, parameters: {deciders: {prefill: prefix-based-pd-decider}}}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: queue-scorer}]}
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: queue-scorer}, {pluginRef: prefix-cache-scorer}]
"""
ROLES = ("prefill", "prefill", "decode", "decode")


def simulation(
    workload: Steady, *, roles: Sequence[str] = ROLES, faults: Sequence[Fault] = (), duration_s: float = 6.0
) -> Simulation:
    policy = PickerPolicy(PickerSettings(config=CONFIG), Registry.installed(), "1")
    labels = [{"llm-d.ai/role": role} for role in roles]
    return Simulation(
        [ENGINE] * len(roles), workload, policy, duration_s=duration_s, faults=faults, labels=labels
    )


def external_tokens(pool: Simulation) -> list[int]:
    return [server.engine.counters.external_hits for server in pool.servers]


def computed(pool: Simulation) -> list[int]:
    """Return the prompt tokens that each server's iterations computed."""
    counters = [server.engine.counters for server in pool.servers]
    return [each.prompt_tokens - each.prefix_hits - each.external_hits for each in counters]


def test_prefill_servers_compute_the_prompts_and_decode_servers_answer() -> None:
    pool = simulation(Steady(20, heads=1_000, head_tokens=1024))
    results = pool.run()
    assert set(results.fates) == {Fate.SERVED}
    assert set(results.servers) == {2, 3}
    total = sum(results.prompt_tokens)
    assert sum(external_tokens(pool)[2:]) > 0.95 * total
    assert external_tokens(pool)[:2] == [0, 0]
    assert all(server.engine.pool.used == 0 for server in pool.servers), "nothing is held after the transfers"


def test_the_first_token_waits_for_prefill_transfer_and_one_iteration() -> None:
    # 1,000 tokens: an iteration of prefill, the transfer, an iteration that decodes one sequence.
    workload = Steady(0.5, heads=1, head_tokens=900, tail_tokens=100, output_tokens=10)
    pool = simulation(workload, roles=("prefill", "decode"), duration_s=8.0)
    results = pool.run()
    tokens = results.prompt_tokens[0]
    prefill = ENGINE.iteration_s + tokens * ENGINE.prefill_token_s
    moved = ENGINE.kv_transfer_s + (tokens - 1) * ENGINE.kv_transfer_token_s
    first = results.first_token_s[0] - results.arrived_s[0]
    assert prefill + moved < first < prefill + moved + 2 * ENGINE.iteration_s


@pytest.mark.parametrize("dead", [0, 2])
def test_a_server_of_either_role_that_dies_leaves_nothing_behind(dead: int) -> None:
    workload = Steady(30, heads=1_000, head_tokens=1024)
    results = simulation(workload, faults=[ServerDies(at_s=2.0, server=dead, back_after_s=10.0)]).run()
    served = results.fates.count(Fate.SERVED)
    assert served + results.fates.count(Fate.FAILED) == len(results)
    if dead == 0:
        assert served == len(results), "the decode servers compute its prompts themselves"
    else:
        assert 0 < len(results) - served < 30, "the answers on it are lost"
        later = [s for s, at in zip(results.servers, results.arrived_s, strict=True) if at > 5.0]
        assert set(later) == {3}


def test_a_prefill_server_that_hangs_costs_its_limit() -> None:
    # One request, to a prefill server whose iterations take a million times as long.
    workload = Steady(0.2, heads=1, head_tokens=900)
    slow = ServerSlows(at_s=0.0, server=0, slowness=1e6, for_s=1e6)
    pool = simulation(workload, roles=("prefill", "decode"), faults=[slow], duration_s=12.0)
    results = pool.run()
    waited = np.array(results.first_token_s) - np.array(results.arrived_s)
    assert set(results.fates) == {Fate.SERVED}
    assert PREFILL_LIMIT_S < waited[0] < PREFILL_LIMIT_S + 1.0
    assert pool.servers[0].engine.pool.used == 0


@settings(max_examples=12, deadline=None)
@given(
    faults=st.lists(
        st.one_of(
            st.builds(
                ServerDies,
                at_s=st.floats(0.1, 4.0),
                server=st.integers(0, 3),
                back_after_s=st.floats(0.1, 3.0),
                noticed_after_s=st.floats(0.0, 0.5),
            ),
            st.builds(
                ServerSlows,
                at_s=st.floats(0.1, 4.0),
                server=st.integers(0, 3),
                slowness=st.floats(1.0, 50.0),
                for_s=st.floats(0.1, 3.0),
            ),
            st.builds(PickerRestarts, at_s=st.floats(0.1, 4.0), down_s=st.floats(0.1, 1.0)),
        ),
        max_size=4,
    )
)
def test_every_request_ends_once_and_nothing_stays_reserved(faults: list[Fault]) -> None:
    workload = Steady(25, heads=1_000, head_tokens=800)
    results = simulation(workload, faults=faults, duration_s=5.0).run()  # raises for a leak
    assert sorted(name for name, _ in workload.ended) == sorted(workload.given[: len(results)])
    assert len({each.request_id for each in results.requests}) == len(results)


def test_groups_share_a_count_in_proportion_and_none_goes_without() -> None:
    groups = [Group((), 2), Group((), 6)]
    assert [shared_out(groups, count) for count in (1, 2, 3, 4, 8, 12)] == [
        [1, 0], [1, 1], [1, 2], [1, 3], [2, 6], [3, 9],
    ]  # fmt: skip


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(1, 400))
def test_every_replica_is_in_some_group(sizes: list[int], replicas: int) -> None:
    counts = shared_out([Group((), each) for each in sizes], replicas)
    assert sum(counts) == replicas
    assert min(counts) >= (1 if replicas >= len(sizes) else 0)


POOL = """
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: p}
spec:
  selector: {matchLabels: {app: m}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: p-epp, port: {number: 9002}}
---
kind: Deployment
spec: {replicas: 1, template: {metadata: {labels: {app: m, llm-d.ai/role: prefill}}}}
---
kind: Deployment
spec: {replicas: 3, template: {metadata: {labels: {app: m, llm-d.ai/role: decode}}}}
---
"""
WORKLOAD = """
duration_s: 10
warmup_s: 2
streams:
- name: s
  arrivals: {type: poisson, rate: 5}
  prompt_tokens: 1000
  output_tokens: 20
"""


def test_a_pool_file_with_deployments_of_roles_is_simulated_with_them() -> None:
    file = parse(POOL + CONFIG, Registry.installed())
    assert file.replicas == 4
    assert [(dict(each.labels)["llm-d.ai/role"], each.replicas) for each in file.groups] == [
        ("prefill", 1),
        ("decode", 3),
    ]
    setup = Setup(prepare(load(WORKLOAD), Path()), ENGINE, 1, {}, file.groups)
    assert [each["llm-d.ai/role"] for each in setup.labels(8)] == ["prefill"] * 2 + ["decode"] * 6
    together = run(setup, Point(file.config, 4), 1).figures
    apart = run(Setup(prepare(load(WORKLOAD), Path()), ENGINE), Point("", 4), 1).figures
    assert together.requests == apart.requests
    assert together.ttft_mean_s > apart.ttft_mean_s, "the transfer takes its time"
