"""Screeners and admitters: what the scheduler asks before any profile runs."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from typing_extensions import override

from endpoint_picker.datalayer.table import Endpoint, EndpointTable, Rows
from endpoint_picker.decision import Decision, Refusal
from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.routing import PoolRouter, build_router
from endpoint_picker.scheduling.hold import Hold
from endpoint_picker.scheduling.plugin import Admitter, NoParams, SaturationDetector, Screener

SHED = "plugins: [{type: probabilistic-admitter, parameters: {%s}}, {type: random-picker}]"
PRIORITIES = '{"objectives": {"batch": {"priority": -1}, "chat": {"priority": 1}}}'
BUSY = Refusal(Outcome.SATURATED, "not now")


def router_of(config: str, labels: Sequence[dict[str, str]]) -> PoolRouter:
    router = build_router(
        config_text=config, priorities_text=PRIORITIES, clock=lambda: 0.0, rng=np.random.default_rng(1)
    )
    assert not router.config_error, router.config_error
    router.replace_endpoints(
        Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000, labels=each) for n, each in enumerate(labels)
    )
    return router


def ask(router: PoolRouter, objective: str = "", **headers: str) -> str:
    """Return the number of the picked endpoint, or why the request was refused."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = InferenceRequest(request_id="r", objective=objective, headers=named)
    answer = router.scheduler.decide(request, None)
    if isinstance(answer, Refusal):
        return answer.outcome.value
    assert isinstance(answer, Decision)
    router.ended(answer, Record(0.0))
    return answer.endpoint.removeprefix("10.0.0.").removesuffix(":8000")


@pytest.mark.parametrize(
    ("parameters", "waiting", "share"),
    [
        pytest.param("", [0, 0], 0.0, id="idle"),
        # (1/5 + 1/5) / 2 = 0.2; 300 * 0.2^5 = 0.096.
        pytest.param("", [1, 1], 0.096, id="a fifth full"),
        # (2/5 + 0) / 2 = 0.2.
        pytest.param("", [2, 0], 0.096, id="the mean counts"),
        # 2/5 = 0.4; 300 * 0.4^5 = 3.07, capped at 1.
        pytest.param("", [2, 2], 1.0, id="two fifths full"),
        # 0.5 * 0.4^1 = 0.2.
        pytest.param("k: 0.5, power: 1", [2, 2], 0.2, id="another curve"),
        # Unknown counts 1: (1 + 0) / 2 = 0.5; 0.5 * 0.5 = 0.25.
        pytest.param("k: 0.5, power: 1", [np.nan, 0], 0.25, id="an endpoint without metrics is full"),
        # 1e9 / 5 to the power of 1e6 is no float; the probability is 1.
        pytest.param("power: 1000000", [1e9, 1e9], 1.0, id="far beyond full"),
    ],
)
def test_the_share_of_sheddable_requests_that_is_refused(
    parameters: str, waiting: list[float], share: float
) -> None:
    router = router_of(SHED % parameters, [{}, {}])
    table = router.table
    table.waiting[table.ready_rows] = waiting
    table.kv_usage[table.ready_rows] = [np.nan if value != value else 0.0 for value in waiting]
    table.scraped_at[table.ready_rows] = np.inf  # the detector's own rule sees fresh metrics
    table.unseen[table.ready_rows] = 0
    loose = replace(router.scheduler.scheduling, detector=Never())
    router.scheduler.use(loose)
    answers = [ask(router, "batch") for _ in range(4000)]
    refused = answers.count("rejected-saturated") / len(answers)
    # Four standard deviations of 4,000 draws.
    assert refused == pytest.approx(share, abs=4 * (share * (1 - share) / 4000) ** 0.5)
    assert router.scheduler.refused_saturated == answers.count("rejected-saturated")
    assert "rejected-saturated" not in {ask(router), ask(router, "chat")}


REVISIONS = [
    {"set": "s", "rev": "a", "role": "prefill"},
    {"set": "s", "rev": "a", "role": "decode"},
    {"set": "s", "rev": "a", "role": "decode"},
    {"set": "s", "rev": "b", "role": "decode"},
]
SCREEN = (
    "plugins: [{type: disaggregatedset-rollout-screener, parameters: {%s}}, {type: random-picker,"
    " parameters: {maxNumOfEndpoints: 1}}]"
)
BY_REVISION = "revisionGating: {revisionLabelKey: rev, roleLabelKey: role, %s}"
STRICT = "headerSelectors: [{name: r, headerName: X-Rev, labelKey: rev, mode: strict}]"
PREFER = "headerSelectors: [{name: r, headerName: X-Rev, labelKey: rev, mode: prefer}]"


@pytest.mark.parametrize(
    ("parameters", "shares"),
    [
        # Weights 3 and 1: revision b gets 1/4; a's three endpoints share 3/4.
        pytest.param(BY_REVISION % "mode: sum", [0.25, 0.25, 0.25, 0.25], id="sum"),
        # Largest roles 2 and 1: b gets 1/3; a's three endpoints share 2/3.
        pytest.param(BY_REVISION % "mode: max-role", [2 / 9, 2 / 9, 2 / 9, 1 / 3], id="max-role"),
        # b has no prefill: it is incomplete and weighs 0.
        pytest.param(
            BY_REVISION % "requireRoles: {values: [prefill, decode]}", [1 / 3, 1 / 3, 1 / 3, 0], id="roles"
        ),
        # No revision has encode: all stay.
        pytest.param(
            BY_REVISION % "requireRoles: {values: [encode]}", [0.25, 0.25, 0.25, 0.25], id="none complete"
        ),
        # Only the decode endpoints are screened: weights 2 and 1. Endpoint 0 is always a candidate, so it
        # gets 2/3 * 1/3 + 1/3 * 1/2.
        pytest.param(
            "scope: {labelSelector: {matchLabels: {role: decode}}}, " + BY_REVISION % "mode: sum",
            [2 / 9 + 1 / 6, 2 / 9, 2 / 9, 1 / 6],
            id="scope",
        ),
    ],
)
def test_a_revision_gets_requests_in_proportion_to_its_weight(parameters: str, shares: list[float]) -> None:
    router = router_of(SCREEN % parameters, REVISIONS)
    answers = [ask(router) for _ in range(4000)]
    for n, share in enumerate(shares):
        deviation = 4 * (share * (1 - share) / 4000) ** 0.5
        assert answers.count(str(n)) / 4000 == pytest.approx(share, abs=deviation)


@pytest.mark.parametrize(
    ("parameters", "header", "expected"),
    [
        pytest.param(STRICT, None, {"0", "1", "2", "3"}, id="no header"),
        pytest.param(STRICT, "b", {"3"}, id="strict"),
        pytest.param(STRICT, "z", {"rejected-no-endpoints"}, id="strict without match"),
        pytest.param(PREFER, "b", {"3"}, id="prefer"),
        pytest.param(PREFER, "z", {"0", "1", "2", "3"}, id="prefer without match"),
        pytest.param(
            "scope: {labelSelector: {matchLabels: {role: decode}}}, " + STRICT,
            "z",
            {"0"},
            id="endpoints out of scope stay",
        ),
    ],
)
def test_a_header_names_the_revision(parameters: str, header: str | None, expected: set[str]) -> None:
    router = router_of(SCREEN % parameters, REVISIONS)
    headers = {} if header is None else {"x_rev": header}
    assert {ask(router, **headers) for _ in range(200)} == expected


class Odd(Screener):
    """Keeps every other row of those that it gets."""

    __slots__ = ()
    type_name = "odd"

    @override
    def screen(self, request: InferenceRequest, rows: Rows, table: EndpointTable) -> Rows:
        return rows[1::2]


class First(Screener):
    """Keeps the first two rows of those that it gets."""

    __slots__ = ()
    type_name = "first"

    @override
    def screen(self, request: InferenceRequest, rows: Rows, table: EndpointTable) -> Rows:
        return rows[:2]


def test_every_screener_sees_all_rows_and_a_row_stays_when_all_keep_it() -> None:
    router = router_of("plugins: [{type: random-picker}]", [{}, {}, {}, {}])
    screeners = (Odd(NoParams()).screen, First(NoParams()).screen)
    router.scheduler.use(replace(router.scheduler.scheduling, screeners=screeners))
    assert {ask(router) for _ in range(50)} == {"1"}
    router.scheduler.use(
        replace(router.scheduler.scheduling, screeners=(lambda _request, rows, _table: rows[:0], *screeners))
    )
    assert ask(router) == "rejected-no-endpoints"
    assert router.scheduler.refused_no_endpoints == 1


class Never(SaturationDetector):
    """Is never saturated."""

    __slots__ = ()
    type_name = "never"

    def __init__(self) -> None:
        pass

    @override
    def saturation(self, rows: Rows, table: EndpointTable, now: float) -> float:
        return 0.0


def test_a_decision_that_waited_is_not_asked_again_for_admission() -> None:
    asked: list[float] = []

    class Refuses(Admitter):
        __slots__ = ()
        type_name = "refuses"

        @override
        def refusal(
            self, request: InferenceRequest, rows: Rows, table: EndpointTable, now: float
        ) -> Refusal | None:
            asked.append(now)
            return BUSY

    router = router_of("plugins: [{type: random-picker}]", [{}])
    admitters = (Refuses(NoParams()).refusal,)
    router.scheduler.use(replace(router.scheduler.scheduling, admitters=admitters))
    assert router.scheduler.decide(InferenceRequest(request_id="r"), None) is BUSY
    held = Hold(deadline=1.0, refusal=BUSY, forget=lambda _hold: None)
    assert isinstance(router.scheduler.decide(InferenceRequest(request_id="r"), None, held), Decision)
    assert asked == [0.0]
