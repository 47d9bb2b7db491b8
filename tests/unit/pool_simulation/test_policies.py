"""The compared policies on one small pool: each runs, and they differ as their knowledge does."""

from dataclasses import replace

import numpy as np
import pytest

from endpoint_picker.config.registry import Registry
from model_server_sim.blocks import Stored
from model_server_sim.params import EngineParams
from pool_simulation.figures import Figures, figures
from pool_simulation.oracles import ORACLES
from pool_simulation.picker_policy import PickerPolicy
from pool_simulation.policies import PICKERS, POLICIES, Make
from pool_simulation.simulation import Simulation
from pool_workloads import Steady

ENGINE = EngineParams(max_num_seqs=16, num_gpu_blocks=3_000)
MAKERS = {**POLICIES, **ORACLES}


def figures_of(make: Make, *, servers: int = 4, rate: float = 40.0, heads: int = 40) -> Figures:
    workload = Steady(rate, heads=heads, head_tokens=1_024, tail_tokens=128)
    policy = make(Registry.installed(), "1")
    results = Simulation([ENGINE] * servers, workload, policy, duration_s=6.0, seed="1").run()
    return figures(results, servers, since_s=2.0, until_s=6.0)


@pytest.mark.parametrize("name", MAKERS)
def test_every_policy_serves_all(name: str) -> None:
    made = figures_of(MAKERS[name])
    assert made.requests > 100
    assert made.refused == made.failed == 0


def test_a_policy_that_knows_prefixes_finds_more_of_them() -> None:
    default, precise, events, random = (
        figures_of(POLICIES[name]).prefix_hit for name in ("default", "precise", "kv-events", "random")
    )
    assert default > random + 0.05
    assert precise > random + 0.05
    assert events > random + 0.05


def test_the_pickers_index_is_what_the_engines_hold() -> None:
    policies: list[PickerPolicy] = []

    def make(registry: Registry, seed: str) -> PickerPolicy:
        policies.append(PickerPolicy(PICKERS["kv-events"], registry, seed))
        return policies[-1]

    simulation = Simulation(
        [replace(ENGINE, num_gpu_blocks=800)] * 2,  # few, so that blocks are evicted
        Steady(20.0, heads=40, head_tokens=1_024, tail_tokens=128),
        make(Registry.installed(), "1"),
        duration_s=4.0,
        seed="1",
    )
    simulation.run()
    (policy,) = policies
    assert policy.router is not None
    pool = policy.router.pool
    assert pool.kv.answers["precise"] > 50
    assert pool.kv.evicted > 100
    assert not pool.kv_sources.counts.stores_skipped
    for source in pool.kv_sources:
        server = next(each for each in policy._pool.servers if each.hostport == source.endpoint.hostport)
        engine = server.engine.pool
        journal = engine.journal or []
        untold = sum(each.blocks if isinstance(each, Stored) else -1 for each in journal)
        assert len(source.blocks) + untold == engine.shared + len(engine._idle)


def test_an_oracle_is_better_at_what_it_looks_for() -> None:
    random = figures_of(POLICIES["random"], heads=1_000)
    assert figures_of(ORACLES["oracle-ttft"], heads=1_000).ttft_mean_s < 0.9 * random.ttft_mean_s
    assert figures_of(ORACLES["oracle-sum"], heads=1_000).e2e_mean_s < random.e2e_mean_s


def test_round_robin_takes_turns() -> None:
    policy = POLICIES["round-robin"](Registry.installed(), "1")
    results = Simulation([ENGINE] * 4, Steady(20), policy, duration_s=4.0).run()
    counts = np.bincount(np.array(results.servers), minlength=4)
    assert counts.max() - counts.min() <= 1
