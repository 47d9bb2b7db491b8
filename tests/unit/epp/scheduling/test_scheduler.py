"""The scheduler with profile handlers other than the single one."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from typing_extensions import override

from endpoint_picker.config.build import build
from endpoint_picker.config.registry import Registry
from endpoint_picker.datalayer.table import Endpoint, EndpointTable
from endpoint_picker.decision import Decision, Refusal
from endpoint_picker.observability.decisions import Decisions
from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.hold import Hold
from endpoint_picker.scheduling.plugin import NoParams, Pool, RandomSource
from endpoint_picker.scheduling.profile import Profile
from endpoint_picker.scheduling.profile_handler import ProfileHandler
from endpoint_picker.scheduling.scheduler import Scheduler

LABELED = "{name: %s, plugins: [{pluginRef: %s-only}, {pluginRef: prefix-cache-scorer}]}"
ROLES = """
plugins:
- {type: header-profile-handler}
- {type: label-selector-filter, name: decode-only, parameters: {matchLabels: {role: decode}}}
- {type: label-selector-filter, name: prefill-only, parameters: {matchLabels: {role: prefill}}}
- {type: prefix-cache-scorer}
"""


class Disaggregated(ProfileHandler):
    """Decodes on one endpoint and prefills on another."""

    __slots__ = ()
    type_name = "disaggregated"
    most_profiles = 2

    @override
    def schedule(
        self,
        request: InferenceRequest,
        candidates: Candidates,
        table: EndpointTable,
        rng: RandomSource,
        profiles: Sequence[Profile],
    ) -> Sequence[Candidates] | Hold:
        prefill = Candidates(candidates.rows)
        for profile, each in zip(profiles, (candidates, prefill), strict=True):
            assert profile.run(request, each, table, rng) is None
            if not each.order.size:
                return ()
        return candidates, prefill


def _raise(fault: Exception) -> None:
    raise fault


def scheduler_of(*roles: str) -> Scheduler:
    profiles = f"schedulingProfiles: [{LABELED % ('decode', 'decode')}, {LABELED % ('prefill', 'prefill')}]"
    built = build(ROLES + profiles, Registry.installed()).scheduling
    scheduling = replace(built, handler=Disaggregated(NoParams()))
    pool = Pool(clock=lambda: 0.0)
    for plugin in built.plugins:
        plugin.attach(pool)
    pool.table.replace(
        Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000, labels={"role": role})
        for n, role in enumerate(roles)
    )
    pool.wake()
    return Scheduler(pool, scheduling, np.random.default_rng(1), Decisions(pool.table, pool.clock), _raise)


def test_a_decision_may_reserve_two_endpoints() -> None:
    scheduler = scheduler_of("decode", "prefill")
    table = scheduler.pool.table
    decision = scheduler.decide(InferenceRequest(request_id="r", prompt=b"x" * 1024), None)
    assert isinstance(decision, Decision)
    assert decision.destination == "10.0.0.0:8000"
    assert [table.hostports[each.row] for each in decision.reservations] == ["10.0.0.0:8000", "10.0.0.1:8000"]
    assert sorted(table.inflight_requests[table.ready_rows].tolist()) == [1, 1]
    assert sorted(table.inflight_tokens[table.ready_rows].tolist()) == [256, 256]
    scheduler.first_byte(decision, Record(0.0))
    assert not table.inflight_tokens.any()
    scheduler.ended(decision, Record(0.0))
    scheduler.ended(decision, Record(0.0))
    assert scheduler.pool.ledger.held == 0
    assert not table.inflight_requests.any()
    # Both know the prompt now.
    again = scheduler.decide(InferenceRequest(request_id="r", prompt=b"x" * 1024), None)
    assert isinstance(again, Decision)
    assert [each.tokens for each in again.reservations] == [0, 0]


def test_a_profile_that_finds_nothing_refuses_and_reserves_nothing() -> None:
    scheduler = scheduler_of("decode", "decode")
    answer = scheduler.decide(InferenceRequest(request_id="r"), None)
    assert isinstance(answer, Refusal)
    assert answer.outcome is Outcome.NO_ENDPOINTS
    assert scheduler.pool.ledger.held == 0


def test_an_answer_from_another_endpoint_gives_all_back_with_its_first_byte() -> None:
    scheduler = scheduler_of("decode", "prefill")
    decision = scheduler.decide(InferenceRequest(request_id="r"), None)
    assert isinstance(decision, Decision)
    record = Record(0.0)
    record.served_by = decision.endpoint
    scheduler.first_byte(decision, record)
    assert scheduler.pool.ledger.held == 1, "the prefill endpoint's part is over"
    record.served_by = "10.9.9.9:8000"
    scheduler.first_byte(decision, record)
    assert scheduler.pool.ledger.held == 0
