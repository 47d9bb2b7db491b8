"""Session affinity: both strategies, and that a client can choose among the candidates only."""

import base64
from typing import Any

import pytest

from endpoint_picker.config.build import build
from endpoint_picker.config.registry import Registry
from endpoint_picker.config_errors import ConfigError
from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.decision import Decision, Refusal, Reservation
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.routing import PoolRouter, build_router
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.filters.session_affinity import SessionAffinityFilter
from endpoint_picker.scheduling.plugin import Pool
from endpoint_picker.scheduling.session import (
    MAX_SESSION,
    MAX_SESSIONS,
    SessionAffinityParams,
)

REGISTRY = Registry.installed()
TOKENS = "plugins: [{type: session-affinity-filter}]"
IDS = "{type: session-affinity-filter, parameters: {strategy: session_id}}"


class Stage:
    """A router over endpoints 10.0.0.0 to 10.0.0.7, and a clock."""

    def __init__(self, config: str) -> None:
        self.now = 1000.0
        self.router: PoolRouter = build_router(config_text=config, clock=lambda: self.now)
        assert not self.router.config_error
        self.serve(range(8))

    def serve(self, numbers: Any, not_ready: int | None = None) -> None:
        self.router.replace_endpoints(
            Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000, ready=n != not_ready) for n in numbers
        )

    def ask(self, subset: list[str] | None = None, *, ends: bool = True, **headers: str) -> Decision:
        """Return the decision; without `ends` the request goes on."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask_with(named, subset, ends=ends)

    def ask_with(
        self, named: dict[str, str], subset: list[str] | None = None, *, ends: bool = True
    ) -> Decision:
        request = InferenceRequest(request_id="r", model="m", headers=named)
        decision = self.router.decide(request, subset, lambda _answer: None)
        assert isinstance(decision, Decision)
        if ends:
            self.router.ended(decision, Record(self.now))
        return decision

    def token_of(self, decision: Decision, *, status: int = 200, served_by: str = "") -> str | None:
        record = Record(self.now)
        record.response_status, record.served_by = status, served_by
        return dict(self.router.scheduler.response_headers(decision, record)).get("x-session-token")


def test_a_returned_token_leads_to_the_same_endpoint() -> None:
    stage = Stage(TOKENS)
    first = stage.ask()
    token = stage.token_of(first)
    assert token is not None
    name = base64.b64decode(token).decode()
    assert name == f"default/p{first.endpoint.split(':')[0][-1]}"
    for _ in range(20):
        again = stage.ask(x_session_token=token)
        assert again.destination == first.endpoint
        assert stage.token_of(again) == token


def test_the_scorer_prefers_the_endpoint_and_names_fallbacks() -> None:
    stage = Stage("plugins: [{type: session-affinity-scorer}]")
    first = stage.ask()
    token = stage.token_of(first)
    assert token is not None
    for _ in range(20):
        again = stage.ask(x_session_token=token)
        assert again.endpoint == first.endpoint
        assert again.destination.count(",") == 2


@pytest.mark.parametrize(
    "token",
    [
        pytest.param("10.0.0.99:8000", id="an address"),
        pytest.param(base64.b64encode(b"10.0.0.99:8000").decode(), id="an encoded address"),
        pytest.param(base64.b64encode(b"default/elsewhere").decode(), id="a pod outside of the pool"),
        pytest.param(base64.b64encode(b"other/p1").decode(), id="another namespace"),
        pytest.param(base64.b64encode(b"p1").decode(), id="no namespace"),
        pytest.param(base64.b64encode("default/p\u00e9".encode()).decode(), id="no ASCII"),
        pytest.param("%%%", id="no base64"),
        pytest.param("A" * 100_000, id="too long"),
        pytest.param("", id="empty"),
    ],
)
def test_a_token_that_names_no_candidate_is_ignored(token: str) -> None:
    stage = Stage(TOKENS)
    known = {f"10.0.0.{n}:8000" for n in range(8)}
    picked = {stage.ask(x_session_token=token).endpoint for _ in range(60)}
    assert picked <= known
    assert len(picked) > 1


def test_a_token_does_not_lead_around_the_proxys_subset_readiness_or_other_filters() -> None:
    stage = Stage("plugins: [{type: header-based-testing-filter}, {type: session-affinity-filter}]")
    token = base64.b64encode(b"default/p5").decode()
    assert stage.ask(x_session_token=token).endpoint == "10.0.0.5:8000"
    assert stage.ask(["10.0.0.1"], x_session_token=token).endpoint == "10.0.0.1:8000"
    picked = stage.ask(x_session_token=token, test_epp_endpoint_selection="10.0.0.2")
    assert picked.endpoint == "10.0.0.2:8000"
    stage.serve(range(8), not_ready=5)
    assert stage.ask(x_session_token=token).endpoint != "10.0.0.5:8000"


def test_a_token_names_the_endpoint_that_served_and_no_failing_one() -> None:
    stage = Stage(TOKENS)
    decision = stage.ask(["10.0.0.1"])
    assert base64.b64decode(stage.token_of(decision, served_by="10.0.0.2:8000") or "") == b"default/p2"
    assert stage.token_of(decision, served_by="10.9.9.9:8000") is None
    assert stage.token_of(decision, status=503) is None
    stage.serve([2, 3])
    assert stage.token_of(decision) is None


def test_a_session_id_is_bound_to_an_endpoint_for_its_time() -> None:
    stage = Stage(f"plugins: [{IDS}]")
    first = stage.ask(x_session_id="s").endpoint
    for _ in range(10):
        stage.now += 200.0
        assert stage.ask(x_session_id="s").endpoint == first
    assert len({stage.ask(x_session_id=f"other-{n}").endpoint for n in range(60)}) > 1
    stage.now += 311.0
    assert len({stage.ask(x_session_id=f"s{n}").endpoint for n in range(60)}) > 1
    stage.serve([n for n in range(8) if f"10.0.0.{n}:8000" != first])
    moved = stage.ask(x_session_id="s").endpoint
    assert moved != first
    stage.serve(range(8))
    assert stage.ask(x_session_id="s").endpoint == moved


def test_a_session_moves_to_the_endpoint_that_answered() -> None:
    stage = Stage(f"plugins: [{IDS}]")
    decision = stage.ask(["10.0.0.1"], ends=False, x_session_id="s")
    record = Record(stage.now)
    record.served_by = "10.0.0.2:8000"
    stage.router.first_byte(decision, record)
    assert stage.ask(x_session_id="s").endpoint == "10.0.0.2:8000"


def test_sessions_are_forgotten_by_the_sweep_and_bounded() -> None:
    ids = {"sources": [{"header": "h"}], "evictionTtlSeconds": 10, "evictionSweepSeconds": 5}
    for ttl, sweep, expected in ((10, 5, False), (100, 5, True), (10, 50, True)):
        settings = {**ids, "evictionTtlSeconds": ttl, "evictionSweepSeconds": sweep}
        config = {"strategy": "session_id", "sessionIdConfig": settings}
        stage = Stage(f"plugins: [{{type: session-affinity-filter, parameters: {config}}}]")
        stage.ask(h="sweeps")
        stage.now += 1.0
        bound = stage.ask(["10.0.0.6"], h="s").endpoint
        stage.now += 12.0
        # A session that is forgotten is free to go elsewhere.
        free = stage.ask([f"10.0.0.{n}" for n in range(8)], h="s").endpoint != bound
        for _ in range(20 if not expected else 0):
            stage.now += 12.0
            free = free or stage.ask(h="s").endpoint != bound
        assert free != expected
    bindings = SessionAffinityFilter(SessionAffinityParams(strategy="session_id"))
    bindings.attach(stage.router.pool)
    for n in range(MAX_SESSIONS + 5):
        bindings._bind(str(n), Reservation(0, 0, 0))
    assert len(bindings._sessions) == MAX_SESSIONS


def test_a_session_id_that_is_too_long_is_none() -> None:
    stage = Stage(f"plugins: [{IDS}]")
    endpoints = {stage.ask(x_session_id="s" * (MAX_SESSION + 1)).endpoint for _ in range(60)}
    assert len(endpoints) > 1


@pytest.mark.parametrize(
    ("reader", "headers"),
    [
        ("{type: session-id-producer, parameters: {headerName: X-Chat}}", {"x-chat": "c"}),
        ("{type: session-id-producer, parameters: {cookieName: sid}}", {"cookie": 'a=b; sid="c"'}),
    ],
)
def test_a_session_from_a_header_or_a_cookie(reader: str, headers: dict[str, str]) -> None:
    source = "sessionIdConfig: {sources: [{attribute: SessionID}]}"
    stage = Stage(
        f"plugins: [{reader}, {{type: session-affinity-filter, "
        f"parameters: {{strategy: session_id, {source}}}}}]"
    )
    first = stage.ask_with(headers).endpoint
    assert {stage.ask_with(headers).endpoint for _ in range(20)} == {first}
    assert len({stage.ask(cookie="sid").endpoint for _ in range(60)}) > 1


def test_an_agent_is_known_by_the_first_of_its_headers() -> None:
    source = "sessionIdConfig: {sources: [{attribute: agent-identity, producer: agents}]}"
    stage = Stage(
        "plugins: [{type: agent-identity, name: agents, parameters: {additionalSessionHeaders: [X-Mine]}}, "
        f"{{type: session-affinity-filter, parameters: {{strategy: session_id, {source}}}}}]"
    )
    first = stage.ask(session_id="old").endpoint
    assert {stage.ask(session_id="old").endpoint for _ in range(20)} == {first}
    claude = stage.ask(x_claude_code_session_id="c", session_id="other").endpoint
    assert {stage.ask(x_claude_code_session_id="c").endpoint for _ in range(20)} == {claude}
    mine = stage.ask(x_mine="m", x_claude_code_session_id="c2").endpoint
    assert {stage.ask(x_mine="m").endpoint for _ in range(20)} == {mine}


@pytest.mark.parametrize(
    ("plugins", "fault"),
    [
        (
            (
                "{type: session-affinity-filter, parameters: {strategy: session_id, "
                "encodedEndpointHeaderConfig: {header: x}}}"
            ),
            "does nothing with strategy session_id",
        ),
        (
            "{type: session-affinity-filter, parameters: {sessionIdConfig: {evictionTtlSeconds: 5}}}",
            "needs strategy session_id",
        ),
        (
            "{type: session-affinity-scorer, parameters: {profileName: prefill}}",
            "which is no profile; there are: default",
        ),
        (
            (
                "{type: session-affinity-filter, parameters: {strategy: session_id, "
                "sessionIdConfig: {sources: [{attribute: SessionID}]}}}"
            ),
            "add session-id-producer",
        ),
        (
            (
                "{type: session-id-producer, parameters: {headerName: a}}, "
                "{type: session-affinity-filter, parameters: {strategy: session_id, "
                "sessionIdConfig: {sources: [{attribute: SessionID, producer: mine}]}}}"
            ),
            '"mine" does not write "SessionID"; it is session-id-producer',
        ),
        (
            "{type: session-affinity-filter, parameters: {encodedEndpointHeaderConfig: {header: 'a: b'}}}",
            "should match pattern",
        ),
        ("{type: session-id-producer}", "give either headerName or cookieName"),
        (
            (
                "{type: session-affinity-filter, parameters: {strategy: session_id, "
                "sessionIdConfig: {sources: [{header: a, producer: b}]}}}"
            ),
            "producer belongs to attribute",
        ),
    ],
)
def test_settings_that_could_not_work_are_refused(plugins: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=r"plugins\[\d\]\.parameters") as caught:
        build(f"plugins: [{plugins}]", REGISTRY)
    assert fault in str(caught.value)


def test_a_refused_request_binds_nothing() -> None:
    stage = Stage(f"plugins: [{IDS}]")
    stage.serve([])
    request = InferenceRequest(request_id="r", headers={"x-session-id": "s"})
    assert isinstance(stage.router.decide(request, None, lambda _answer: None), Refusal)
    stage.serve(range(8))
    assert stage.ask(x_session_id="s").endpoint


def test_a_sweep_of_many_sessions_is_divided_over_requests() -> None:
    """100,000 sessions forgotten in one decision would hold up all other requests for tens of ms."""
    settings = {"sources": [{"header": "h"}], "evictionTtlSeconds": 10, "evictionSweepSeconds": 5}
    params = {"strategy": "session_id", "sessionIdConfig": settings}
    plugin = SessionAffinityFilter(SessionAffinityParams.model_validate(params))
    pool = Pool(clock=lambda: now)
    plugin.attach(pool)
    now, many = 100.0, 1_000
    pool.table.replace([Endpoint("p", "default", "10.0.0.1", 8000)])
    candidates = Candidates(pool.table.ready_rows)

    def known() -> int:
        return sum(plugin.bound(asking(n), candidates) is not None for n in range(many))

    def asking(number: int) -> InferenceRequest:
        return InferenceRequest(request_id="r", headers={"h": str(number)})

    for number in range(many):
        reservation = Reservation(0, pool.table.generation[0], 1)
        reservation.is_primary = True
        plugin.decided(asking(number), candidates, reservation)
    assert known() == many
    now += 20.0
    assert plugin.bound(asking(many - 1), candidates) == 0, "one request does not forget them all"
    assert known() == 0
