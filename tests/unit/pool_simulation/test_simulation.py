"""Runs of small pools: equal seeds, every request's one end, and what the picker's own code makes of them."""

from collections.abc import Sequence

import numpy as np
import pytest
from typing_extensions import override

from endpoint_picker.config.registry import Registry
from endpoint_picker.datalayer.table import STALE_AFTER_S, EndpointTable, Floats
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.scorers.queue import QueueScorer
from model_server_sim.params import EngineParams
from pool_simulation.faults import Fault, MetricsFreeze, PickerRestarts, ServerDies, ServerSlows
from pool_simulation.picker_policy import PickerPolicy, PickerSettings
from pool_simulation.policy import Pick, Policy, Refused, Resume
from pool_simulation.results import NO_SERVER, Fate, Results
from pool_simulation.scrapes import ScrapeTiming
from pool_simulation.simulation import TOO_LONG, Simulation
from pool_simulation.workload import SimulatedRequest, Workload
from pool_workloads import Chats, Steady

SLOW = EngineParams(max_num_seqs=8, num_gpu_blocks=2_000)


def simulation(
    workload: Workload,
    *,
    settings: PickerSettings | None = None,
    policy: Policy | None = None,
    servers: int = 4,
    duration_s: float = 10.0,
    seed: str = "1",
    faults: Sequence[Fault] = (),
) -> Simulation:
    chosen = policy or PickerPolicy(settings or PickerSettings(), Registry.installed(), seed)
    return Simulation([SLOW] * servers, workload, chosen, duration_s=duration_s, seed=seed, faults=faults)


def test_equal_seeds_give_equal_bytes_and_another_seed_does_not() -> None:
    one, same, other = (simulation(Steady(20, seed), seed=str(seed)).run().csv() for seed in (1, 1, 2))
    assert one == same
    assert one != other


@pytest.mark.parametrize(
    "fault",
    [
        ServerDies(at_s=2.0, server=1, back_after_s=4.0),
        ServerSlows(at_s=2.0, server=1, slowness=3.0, for_s=3.0),
        MetricsFreeze(at_s=2.0, server=1, for_s=3.0),
        MetricsFreeze(at_s=2.0, server=1, for_s=3.0, answers=False),
        PickerRestarts(at_s=2.0, down_s=1.0),
        None,
    ],
    ids=str,
)
@pytest.mark.parametrize("priority", [0, -1])
def test_every_request_ends_once_and_the_ledger_is_empty_then(fault: Fault | None, priority: int) -> None:
    workload = Steady(40, priority=priority)
    run = simulation(workload, faults=() if fault is None else (fault,))
    results = run.run()  # checks the ledger
    ended = [request.request_id for request in results.requests]
    asked = [each for each in workload.given if each in set(ended)]
    assert len(ended) == len(set(ended))
    assert asked == workload.given[: len(ended)], "a request that arrived has not ended"
    assert workload.ended == [
        (request.request_id, fate is Fate.SERVED)
        for request, fate in zip(results.requests, results.fates, strict=True)
    ]
    for request, fate, server, generated in zip(
        results.requests, results.fates, results.servers, results.output_tokens, strict=True
    ):
        assert (fate is Fate.SERVED) == (generated == request.output_tokens)
        assert fate is not Fate.REFUSED or server == NO_SERVER
    assert all(server.engine.running == server.engine.waiting == 0 for server in run.servers)
    assert sum(results.reasons.values()) == results.fates.count(Fate.REFUSED)


def test_sheddable_requests_are_refused_at_saturation_and_others_are_not() -> None:
    burst = simulation(Steady(300, priority=-1), servers=1).run()
    assert burst.reasons.keys() == {"rejected-saturated"}
    assert 0 < burst.fates.count(Fate.REFUSED) < len(burst)
    assert simulation(Steady(300), servers=1).run().fates.count(Fate.REFUSED) == 0


def test_a_changed_scorer_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    before = simulation(Steady(60, heads=1_000)).run()

    def longest_first(
        self: QueueScorer, request: InferenceRequest, candidates: Candidates, table: EndpointTable
    ) -> Floats:
        return 1.0 - scored(self, request, candidates, table)

    scored = QueueScorer.score
    monkeypatch.setattr(QueueScorer, "score", longest_first)
    after = simulation(Steady(60, heads=1_000)).run()
    assert mean_ttft(after) > 1.2 * mean_ttft(before)


def mean_ttft(results: Results) -> float:
    first, arrived = np.array(results.first_token_s), np.array(results.arrived_s)
    return float(np.nanmean(first - arrived))


def test_a_chats_next_turn_finds_its_prefix_and_its_answer_in_the_cache() -> None:
    results = simulation(Chats(users=3), servers=1, duration_s=60.0).run()
    assert len(results) == 12
    later = [at for at, request in enumerate(results.requests) if not request.request_id.endswith("-1")]
    for at in later:
        request = results.requests[at]
        said = request.prompt_tokens - request.prompt[-1].tokens
        # All of what was said before, save the part of a block at its end and the last token's own.
        assert results.cached_tokens[at] >= said - 2 * SLOW.block_size


class Watched(PickerPolicy):
    """Notes the ages of the table's values, and whether they are known, at each decision."""

    def __init__(self, settings: PickerSettings) -> None:
        super().__init__(settings, Registry.installed(), "1")
        self.ages: list[float] = []
        self.known: list[bool] = []

    @override
    def decide(self, request: SimulatedRequest, resume: Resume) -> Pick | Refused | None:
        assert self.router is not None
        table = self.router.table
        rows = table.ready_rows
        now = self._pool.clock.now
        if now > 2.0:
            self.ages.append(float(np.max(now - table.scraped_at[rows])))
            self.known.append(not np.isnan(table.waiting[rows]).any())
        return super().decide(request, resume)


@pytest.mark.parametrize(("interval_s", "known"), [(0.05, True), (1.0, True), (8.0, False)])
def test_scraped_values_age_in_virtual_time_and_expire(interval_s: float, known: bool) -> None:
    watched = Watched(PickerSettings(scrape=ScrapeTiming(interval_s=interval_s, delay_s=0.01)))
    simulation(Steady(40), policy=watched).run()
    assert 0.5 * interval_s < max(watched.ages) < 3 * interval_s + 0.02
    assert min(watched.ages) >= 0.01
    assert all(watched.known) is known


@pytest.mark.parametrize("answers", [True, False])
def test_a_server_whose_page_stands_still_or_no_longer_comes_is_known_while_it_answers(answers: bool) -> None:
    watched = Watched(PickerSettings())
    freeze = MetricsFreeze(at_s=0.0, server=0, answers=answers)
    simulation(Steady(40), policy=watched, faults=(freeze,)).run()
    assert all(watched.known)
    assert (max(watched.ages) > STALE_AFTER_S) is not answers


def test_a_request_that_no_server_can_hold_is_refused() -> None:
    results = simulation(Steady(5, tail_tokens=200_000), duration_s=2.0).run()
    assert results.reasons == {TOO_LONG: len(results)}


def test_a_dead_server_gets_no_request_and_comes_back_without_its_cache() -> None:
    fault = ServerDies(at_s=3.0, server=0, noticed_after_s=1.0, back_after_s=4.0)
    results = simulation(Steady(40, heads=1_000), faults=(fault,)).run()
    arrived = np.array(results.arrived_s)
    servers, cached = np.array(results.servers), np.array(results.cached_tokens)
    served = np.array([fate is Fate.SERVED for fate in results.fates])
    while_down = (arrived > 3.0) & (arrived < 7.0)
    assert while_down.sum() > 100
    assert served[while_down].all(), "the next endpoint of the picker's list takes what a dead one refuses"
    assert not (servers[while_down] == 0).any()
    back = (arrived > 7.0) & (servers == 0)
    assert back.any()
    assert cached[back].min() == 0 < cached[~back].max()
    assert 0 < (~served).sum() <= SLOW.max_num_seqs + 20


def test_a_slowed_server_gets_fewer_requests() -> None:
    slowed = ServerSlows(at_s=0.0, server=0, slowness=4.0)
    results = simulation(Steady(40, heads=1_000), faults=(slowed,)).run()
    counts = np.bincount(np.array(results.servers), minlength=4)
    assert counts[0] < 0.7 * counts[1:].mean()


def test_requests_that_the_picker_held_fail_when_it_dies_and_later_ones_do_not() -> None:
    results = simulation(Steady(40), faults=(PickerRestarts(at_s=3.0, down_s=1.0),)).run()
    for request, fate, ended_s in zip(results.requests, results.fates, results.ended_s, strict=True):
        assert (fate is Fate.FAILED) == (request.arrival_s < 3.0 <= ended_s)
    assert results.fates.count(Fate.FAILED) > 0


def test_a_refused_configuration_raises() -> None:
    with pytest.raises(ValueError, match="queue-skorer"):
        simulation(Steady(1), settings=PickerSettings(config=BROKEN)).run()


BROKEN = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-skorer
"""
