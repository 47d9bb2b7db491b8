"""Stages on different servers: which run, what they reserve, what ends them, and what is refused at load.

The pool has prefill servers 10.0.1.x and decode servers 10.0.2.x unless a test says otherwise.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from endpoint_picker.config.build import build
from endpoint_picker.config.registry import Registry
from endpoint_picker.config_errors import ConfigError
from endpoint_picker.datalayer.contact import Contact
from endpoint_picker.datalayer.stage_counts import MAX_MODELS, StageCounts
from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.decision import Decision, Refusal
from endpoint_picker.observability.explain import explain_page
from endpoint_picker.observability.metrics import PickerMetrics
from endpoint_picker.observability.pool_gauges import ScrapeCounts, add_pool_gauges
from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Record
from endpoint_picker.request import ConditionalRequest, InferenceRequest
from endpoint_picker.routing import PoolRouter, build_router
from endpoint_picker.scheduling.handlers.disaggregated import decision_type

REGISTRY = Registry.installed()
ROLE = "llm-d.ai/role"
CONFIG = """
plugins:
- {type: approx-prefix-cache-producer, parameters: {autoTune: false}}
- {type: prefix-cache-scorer}
- {type: queue-scorer}
- {type: prefill-filter}
- {type: decode-filter}
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 2}}
- {type: %s, name: decider%s}
- {type: disagg-profile-handler, parameters: {deciders: {prefill: decider}}}
schedulingProfiles:
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: queue-scorer}, {pluginRef: prefix-cache-scorer}]
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: queue-scorer}, {pluginRef: prefix-cache-scorer}]
"""
ALWAYS = CONFIG % ("always-disagg-pd-decider", "")


def by_prefix(tokens: int) -> str:
    return CONFIG % ("prefix-based-pd-decider", f", parameters: {{nonCachedTokens: {tokens}}}")


def server(role: str, number: int, **labels: str) -> Endpoint:
    third = {"prefill": 1, "decode": 2, "encode": 3}.get(role, 4)
    return Endpoint(f"{role}-{number}", "d", f"10.0.{third}.{number}", 8000, labels={ROLE: role, **labels})


POOL = [server("prefill", 0), server("prefill", 1), server("decode", 0), server("decode", 1)]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def router_of(config: str, endpoints: list[Endpoint] | None = None, clock: Clock | None = None) -> PoolRouter:
    router = build_router(config_text=config, clock=clock or Clock(), rng=np.random.default_rng(1))
    assert not router.config_error, router.config_error
    router.replace_endpoints(POOL if endpoints is None else endpoints)
    return router


def decide(router: PoolRouter, tokens: int = 1000, request: InferenceRequest | None = None) -> Any:
    asked = request or InferenceRequest(request_id="r", model="m", prompt=bytes(4 * tokens))
    return router.decide(asked, None, lambda _late: None)


def picked(router: PoolRouter, tokens: int = 1000) -> Decision:
    answer = decide(router, tokens)
    assert isinstance(answer, Decision)
    return answer


def answered(router: PoolRouter, decision: Decision, *, status: int = 200, took: float = 0.1) -> Record:
    record = Record(100.0)
    record.model, record.response_status = "m", status
    record.decided_at, record.first_byte_at = 100.0, 100.0 + took
    router.first_byte(decision, record)
    return record


def load(router: PoolRouter) -> dict[str, tuple[int, int, int]]:
    """Return by endpoint its requests, prefill tokens and decode tokens in flight; those at zero left out."""
    table = router.table
    rows = table.ready_rows.tolist()
    counts = {
        table.hostports[row]: (
            int(table.inflight_requests[row]),
            int(table.inflight_tokens[row]) - table.decode_tokens[row],
            table.decode_tokens[row],
        )
        for row in rows
    }
    return {name: each for name, each in counts.items() if any(each)}


def test_each_stage_holds_its_tokens_on_its_server_until_it_is_over() -> None:
    router = router_of(ALWAYS)
    decision = picked(router)
    decode, (_, prefill) = decision.endpoint, decision.headers[0]
    assert decode.startswith("10.0.2.")
    assert prefill.startswith("10.0.1.")
    assert load(router) == {decode: (1, 0, 1000), prefill: (1, 1000, 0)}
    record = answered(router, decision)
    assert load(router) == {decode: (1, 0, 1000)}, "the prompt has been computed"
    router.ended(decision, record)
    router.ended(decision, record)
    assert load(router) == {}
    assert (router.ledger.reserved, router.ledger.released) == (2, 2)


def test_an_end_before_the_first_byte_gives_both_stages_back() -> None:
    router = router_of(ALWAYS)
    router.ended(picked(router), Record(0.0))
    assert load(router) == {}
    assert router.ledger.held == 0


def test_a_first_byte_after_the_end_changes_nothing() -> None:
    router = router_of(ALWAYS)
    decision = picked(router)
    router.ended(decision, Record(0.0))
    answered(router, decision)
    assert load(router) == {}
    assert router.ledger.released == 2


def test_a_burst_spreads_over_the_servers_of_both_stages() -> None:
    router = router_of(ALWAYS)
    decisions = [picked(router) for _ in range(4)]
    assert {name: each[0] for name, each in load(router).items()} == {
        "10.0.1.0:8000": 2,
        "10.0.1.1:8000": 2,
        "10.0.2.0:8000": 2,
        "10.0.2.1:8000": 2,
    }
    assert len({each.headers for each in decisions}) == 2


def test_an_answer_from_a_fallback_moves_the_decode_stage_and_ends_the_prefill_stage() -> None:
    router = router_of(ALWAYS)
    decision = picked(router)
    first, fallback = decision.destination.split(",")
    assert first == decision.endpoint
    record = Record(100.0)
    record.served_by = fallback
    router.first_byte(decision, record)
    assert load(router) == {fallback: (1, 0, 1000)}
    router.ended(decision, record)
    assert load(router) == {}


def test_what_the_decode_server_holds_decides_who_computes_the_prompt() -> None:
    # 1,000 tokens in blocks of 64 are 15 full blocks, 960 tokens: 40 are left once they are cached.
    router = router_of(by_prefix(40))
    first = picked(router)
    assert len(first.reservations) == 2
    again = picked(router)
    assert again.endpoint == first.endpoint
    assert len(again.reservations) == 2, "40 >= 40"
    router = router_of(by_prefix(41))
    picked(router)
    again = picked(router)
    assert again.headers == ()
    (held,) = again.reservations
    assert (held.tokens, held.decode_tokens) == (40, 0), "it computes the rest of the prompt itself"


def test_without_a_threshold_no_prompt_goes_to_a_prefill_server() -> None:
    assert picked(router_of(by_prefix(0))).headers == ()


def test_the_decider_sees_the_cache_where_no_scorer_asks_for_it() -> None:
    config = by_prefix(41).replace(", {pluginRef: prefix-cache-scorer}", "")
    router = router_of(config.replace("- {type: prefix-cache-scorer}\n", ""), POOL[:3])
    assert len(picked(router).reservations) == 2
    assert len(picked(router).reservations) == 1


@pytest.mark.parametrize("order", ["decode-first", "prefill-first"])
def test_a_stage_without_a_server_is_left_out(order: str) -> None:
    config = ALWAYS
    if order == "prefill-first":
        config = config.replace("deciders: {prefill: decider}", "stageOrder: prefill-first")
        config = config.replace("- {type: always-disagg-pd-decider, name: decider}\n", "")
    router = router_of(config, POOL[2:])
    assert picked(router).headers == ()
    assert router.pool.stages.dropped == {("disagg-profile-handler", "prefill"): 1}
    router.replace_endpoints(POOL[:2])
    answer = decide(router)
    assert isinstance(answer, Refusal)
    assert answer.outcome is Outcome.NO_ENDPOINTS


def test_a_server_of_both_stages_is_sent_no_transfer_to_itself() -> None:
    router = router_of(ALWAYS, [server("prefill-decode", 0)])
    decision = picked(router)
    assert decision.headers == ()
    assert [(each.tokens, each.decode_tokens) for each in decision.reservations] == [(1000, 0)]


@pytest.mark.parametrize(
    ("contact", "scraped", "used"),
    [
        (Contact.SILENT, True, False),
        (Contact.REFUSED, True, False),
        (Contact.WITHOUT_METRICS, True, True),
        (Contact.UNREACHABLE, False, True),  # its metrics may be elsewhere
    ],
)
def test_a_prefill_server_that_stopped_answering_scrapes_is_not_waited_for(
    contact: Contact, scraped: bool, used: bool
) -> None:
    router = router_of(ALWAYS, POOL[1:])
    table = router.table
    (row,) = [each for each in table.ready_rows.tolist() if table.hostports[each] == "10.0.1.1:8000"]
    table.contact[row] = contact
    table.scraped_at[row] = 50.0 if scraped else -np.inf
    assert bool(picked(router).headers) is used


def test_a_late_answer_is_no_sign_of_life_of_the_prefill_server() -> None:
    # Eight requests without an answer for the patience of 1 s: the first stalls, and the other takes all.
    clock = Clock()
    router = router_of(ALWAYS, [POOL[0], *POOL[2:]], clock)
    waiting = [picked(router) for _ in range(8)]
    clock.now += 0.5
    for decision in waiting[:4]:
        router.ended(decision, answered(router, decision, took=5.0))
    waiting += [picked(router) for _ in range(4)]
    clock.now += 0.6
    picked(router)
    (row,) = [each for each in router.table.ready_rows.tolist() if router.table.hostports[each][5] == "1"]
    assert router.pool.progress.stalls(row)
    answered(router, waiting[-1], took=0.2)
    assert not router.pool.progress.stalls(row)


ENCODE = """
plugins:
- {type: encode-filter}
- {type: prefill-filter}
- {type: decode-filter}
- {type: always-disagg-multimodal-decider}
- {type: always-disagg-pd-decider}
- {type: topology-affinity-scorer}
- {type: max-score-picker}
- {type: disagg-profile-handler, parameters: {deciders: {
    encode: always-disagg-multimodal-decider, prefill: always-disagg-pd-decider}}}
schedulingProfiles:
- {name: encode, plugins: [{pluginRef: encode-filter}, {pluginRef: topology-affinity-scorer}]}
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: topology-affinity-scorer}]}
- {name: decode, plugins: [{pluginRef: decode-filter}]}
"""
ZONE = "topology.kubernetes.io/zone"
ZONES: list[Endpoint] = [
    server(role, n, **{ZONE: "ab"[n]}) for role in ("encode", "prefill", "decode") for n in range(2)
]


def test_three_stages_are_reserved_apart_and_each_is_near_the_one_before() -> None:
    router = router_of(ENCODE, ZONES)
    for _ in range(8):
        decision = decide(router, request=InferenceRequest(request_id="r", prompt=b"\x03" + bytes(3999)))
        number = decision.endpoint.removesuffix(":8000")[-1]
        encode, prefill = (dict(decision.headers)[f"x-{each}"] for each in
                           ("encoder-hosts-ports", "prefiller-host-port"))  # fmt: skip
        assert encode.split(",")[0] == f"10.0.3.{number}:8000"
        assert prefill == f"10.0.1.{number}:8000"
        assert load(router) == {
            decision.endpoint: (1, 0, 1000),
            prefill: (1, 1000, 0),
            encode.split(",")[0]: (1, 0, 0),
        }
        router.ended(decision, Record(0.0))
    assert load(router) == {}


def test_prefill_first_shows_its_server_to_the_decode_stage() -> None:
    config = ENCODE.replace(", prefill: always-disagg-pd-decider", "").replace(
        "parameters: {", "parameters: {stageOrder: prefill-first, "
    )
    config = config.replace("- {type: always-disagg-pd-decider}\n", "")
    config = config.replace(
        "[{pluginRef: decode-filter}]", "[{pluginRef: decode-filter}, {pluginRef: topology-affinity-scorer}]"
    )
    router = router_of(config, ZONES)
    seen = set()
    for _ in range(16):
        decision = picked(router)
        (_, prefill), number = decision.headers[0], decision.endpoint[-6]
        assert prefill == f"10.0.1.{number}:8000"
        seen.add(number)
        router.ended(decision, Record(0.0))
    assert seen == {"0", "1"}


def conditional(tokens: int = 1000) -> InferenceRequest:
    return ConditionalRequest(request_id="c", model="m", prompt=bytes(4 * tokens), body_bytes=4 * tokens)


@pytest.mark.parametrize("config", [ALWAYS, ""])
def test_conditional_decode_is_answered_only_by_a_server_that_holds_the_prompt(config: str) -> None:
    router = router_of(config)
    refusal = decide(router, request=conditional())
    assert isinstance(refusal, Refusal)
    assert refusal.outcome.http_status == 412
    assert refusal.message == "no decode worker has the requested KV cache"
    assert load(router) == {}
    router.ended(picked(router), Record(0.0))
    answer = decide(router, request=conditional())
    assert isinstance(answer, Decision)
    assert decide(router, request=conditional(10)).outcome is Outcome.NOT_CACHED, "shorter than a block"
    listing = ConditionalRequest(request_id="c")
    assert isinstance(decide(router, request=listing), Decision), "GET /v1/models has no prompt"


def test_decisions_are_counted_by_type_under_the_models_that_servers_answer() -> None:
    router = router_of(by_prefix(100))
    for tokens, status in ((1000, 200), (50, 200), (50, 200), (50, 404)):
        decision = picked(router, tokens)
        router.ended(decision, answered(router, decision, status=status))
    decision = picked(router, 50)
    record = Record(100.0)
    record.model = "made-up"
    router.ended(decision, record)
    metrics = PickerMetrics()
    add_pool_gauges(
        metrics, "p", router.scheduler, lambda: router.offered, ScrapeCounts(lambda: 0, lambda: 0)
    )
    found = {
        (sample.name, sample.labels["model_name"], sample.labels["decision_type"]): sample.value
        for family in metrics.collect()
        for sample in family.samples
        if "disagg_decision" in sample.name and sample.name.endswith("_total")
    }
    for prefix in ("llm_d_epp_", "llm_d_inference_scheduler_"):
        name = f"{prefix}disagg_decision_total"
        assert found[name, "m", "prefill-decode"] == 1
        assert found[name, "m", "decode-only"] == 3
        assert found[name, "other", "decode-only"] == 1
    assert not any(name.startswith("llm_d_epp_pd_decision") for name, *_ in found)


def test_strangers_cannot_grow_the_counts() -> None:
    counts = StageCounts()
    for number in range(3 * MAX_MODELS):
        counts.count("h", f"m{number}", "decode-only", proven=True)
        counts.count("h", f"x{number}", "decode-only", proven=False)
    found = dict(counts.items())
    assert len(found) == MAX_MODELS + 1
    assert sum(found.values()) == 6 * MAX_MODELS


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        (["decode"], "decode-only"),
        (["decode", "prefill"], "prefill-decode"),
        (["decode", "encode"], "encode-decode"),
        (["decode", "encode", "prefill"], "encode-prefill-decode"),
    ],
)
def test_the_type_names_the_stages_in_the_order_of_the_work(stages: list[str], expected: str) -> None:
    assert decision_type(stages) == expected


def test_an_explanation_shows_each_stage() -> None:
    router = router_of(ALWAYS)
    decision = picked(router)
    (page,) = explain_page(router.decisions, {"request_id": "r"}, 0.0)["decisions"]
    assert [(each["name"], each["stage"], each["picked"]) for each in page["profiles"]] == [
        ("decode", "decode", decision.endpoint),
        ("prefill", "prefill", decision.headers[0][1]),
    ]
    assert page["stagesLeftOut"] == []


def test_an_explanation_names_the_stages_that_did_not_run() -> None:
    router = router_of(by_prefix(2000))
    picked(router)
    (page,) = explain_page(router.decisions, {"request_id": "r"}, 0.0)["decisions"]
    assert page["stagesLeftOut"] == ["prefill"]
    assert [each["stage"] for each in page["profiles"]] == ["decode"]


def test_the_state_survives_a_new_configuration() -> None:
    router = router_of(ALWAYS)
    decision = picked(router)
    assert router.apply_config("")
    router.ended(decision, answered(router, decision))
    assert load(router) == {}
    assert dict(router.pool.stages.items()) == {("disagg-profile-handler", "m", "prefill-decode"): 1}


def faulty(change: tuple[str, str], config: str = ALWAYS) -> str:
    with pytest.raises(ConfigError) as caught:
        build(config.replace(*change), REGISTRY)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("{deciders: {prefill: decider}}", "{}"), 'profile "prefill" would never run'),
        (("prefill: decider", "prefill: nobody"), 'no plugin is named "nobody"'),
        (("prefill: decider", "prefill: queue-scorer"), '"queue-scorer" is no decider'),
        (("prefill: decider", "prefill: decider, encode: decider"), "deciders.encode has nothing to decide"),
        (("{deciders", "{stageOrder: prefill-first, deciders"), "every request has the prefill stage"),
        (("{deciders", "{profiles: {decode: d}, deciders"), 'profile "decode" is of none of the stages'),
        (("{deciders", "{profiles: {decode: prefill}, deciders"), "a profile of its own"),
        (("{deciders", "{deciderPluginName: decider, deciders"), "keep deciders.prefill"),
        (("name: decode\n", "name: other\n"), 'profile "other" is of none of the stages'),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(change: tuple[str, str], words: str) -> None:
    assert words in faulty(change)


def test_the_old_names_of_keys_and_plugins_work_and_say_what_to_write() -> None:
    config = ALWAYS.replace("deciders: {prefill: decider}", "decodeProfile: d, deciderPluginName: decider")
    config = config.replace("name: decode\n", "name: d\n")
    built = build(config.replace("plugins:", "plugins:\n- {type: disagg-headers-handler}", 1), REGISTRY)
    said = " ".join(built.warnings)
    assert "decodeProfile is deprecated; write profiles.decode" in said
    assert "deciderPluginName is deprecated; write deciders.prefill" in said
    assert "disagg-headers-handler is deprecated; remove it" in said
    assert len(picked(router_of(config)).reservations) == 2


def test_a_header_plugin_needs_the_handler_and_its_profiles() -> None:
    assert "which this configuration lacks" in faulty(("", ""), "plugins: [{type: prefill-header-handler}]")
    listed = "plugins:\n- {type: prefill-header-handler, parameters: {prefillProfile: decode}}"
    assert "not that of the prefill stage" in faulty(("\nplugins:", f"\n{listed}"))


class Streams(RuleBasedStateMachine):
    """Requests of one to three stages that end in any way and order, while servers leave and return."""

    def __init__(self) -> None:
        super().__init__()
        decider = "prefix-based-pd-decider, name: always-disagg-pd-decider, parameters: {nonCachedTokens: 90}"
        self.router = router_of(ENCODE.replace("always-disagg-pd-decider", decider, 1), ZONES)
        self.open: list[tuple[Decision, dict[str, str], bool]] = []
        """Decision, stage to server, whether its first byte came."""

    @rule(tokens=st.integers(0, 300), media=st.booleans())
    def ask(self, tokens: int, media: bool) -> None:
        prompt = b"\x03" * media + bytes(np.random.default_rng(tokens).bytes(4 * tokens)).replace(
            b"\x03", b"\x04"
        )
        answer = decide(self.router, request=InferenceRequest(request_id="r", prompt=prompt))
        if isinstance(answer, Decision):
            hostports = self.router.table.hostports
            servers = {each.profile: hostports[each.row] for each in answer.reservations}
            self.open.append((answer, servers, False))

    @rule(choice=st.integers(0, 9), served_by=st.sampled_from(["", "10.0.2.0:8000", "10.9.9.9:1"]))
    def first_byte(self, choice: int, served_by: str) -> None:
        if not self.open:
            return
        at = choice % len(self.open)
        decision, servers, _ = self.open[at]
        record = Record(100.0)
        record.served_by = served_by
        self.router.first_byte(decision, record)
        left = {"decode": servers["decode"]} if "decode" in servers else {}
        if served_by and served_by != decision.endpoint and left:
            row = self.router.table.row_of(served_by)
            left = {} if row is None else {"decode": served_by}
        self.open[at] = decision, left, True

    @rule(choice=st.integers(0, 9), times=st.integers(1, 2))
    def end(self, choice: int, times: int) -> None:
        if self.open:
            decision, *_ = self.open.pop(choice % len(self.open))
            for _ in range(times):
                self.router.ended(decision, Record(100.0))

    @rule(numbers=st.sets(st.integers(0, len(ZONES) - 1)))
    def change_pool(self, numbers: set[int]) -> None:
        self.router.replace_endpoints([ZONES[n] for n in sorted(numbers)])

    @invariant()
    def the_ledger_equals_a_recount_of_each_stage(self) -> None:
        ledger = self.router.ledger
        assert ledger.held == sum(len(servers) for _, servers, _ in self.open)
        assert ledger.held == ledger.reserved - ledger.released
        recount: dict[str, list[int]] = {}
        for decision, servers, _ in self.open:
            for reservation in decision.reservations:
                where = servers.get(reservation.profile)
                if where is not None:
                    count = recount.setdefault(where, [0, 0, 0])
                    count[0] += 1
                    count[1] += reservation.tokens
                    count[2] += reservation.decode_tokens
        listed = {self.router.table.hostports[row] for row in self.router.table.ready_rows.tolist()}
        assert load(self.router) == {name: tuple(each) for name, each in recount.items() if name in listed}


TestStreams = Streams.TestCase
TestStreams.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
