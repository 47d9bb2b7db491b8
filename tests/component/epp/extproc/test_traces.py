"""Traces and the access log behind the real Envoy: what a collector and a reader of the log see."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import otlp_collector
from envoy_stage import Stage, post, prompt, streaming, until
from otlp_collector import Collector

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
#: The flag of a traceparent.
SAMPLED = 1
DECISION = "gateway.request_orchestration"


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        yield Stage(stack, tmp_path / "envoy.log")


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with otlp_collector.running() as made:
        yield made


def tracing(collector: Collector, percent: int = 100) -> tuple[str, ...]:
    return (
        f"--tracing-endpoint=http://{collector.address}",
        f"--tracing-sampling-percent={percent}",
    )


def seen_by_server(stage: Stage) -> list[str]:
    """Return version, trace, parent and flags that the model server got; empty without a traceparent."""
    (server,) = stage.servers
    return server.headers.get("traceparent", "").split("-") if "traceparent" in server.headers else []


async def exported(stage: Stage) -> None:
    """Have the picker export what it holds; the exporter alone would wait for some seconds."""
    await stage.settled()
    await stage.flush_traces()


async def test_gateway_picker_and_engine_are_one_trace(stage: Stage, collector: Collector) -> None:
    await stage.start(*tracing(collector, percent=0), servers=1, collector=collector.address)
    await post(stage, prompt(2000), traceparent=f"00-{TRACE}-{CALLER}-01")
    await exported(stage)
    await until(lambda: len(collector.of("gateway", TRACE)) >= 3)
    picker, gateway = collector.of("headroom-epp"), collector.of("gateway")
    assert {each.trace for each in collector.spans} == {TRACE}
    ingress = next(each for each in gateway.values() if each.parent == CALLER)
    call = next(each for each in gateway.values() if each.id == picker["gateway.request"].parent)
    assert call.parent == ingress.id
    assert picker[DECISION].parent == picker["gateway.request"].id
    _, trace, parent, flags = seen_by_server(stage)
    assert (trace, flags) == (TRACE, "01")
    assert parent in {each.id for each in gateway.values()}


async def test_without_a_tracing_proxy_the_picker_is_the_engines_parent(
    stage: Stage, collector: Collector
) -> None:
    await stage.start(*tracing(collector, percent=0), servers=1)
    await post(stage, prompt(2000), traceparent=f"00-{TRACE}-{CALLER}-01", tracestate="vendor=1")
    await exported(stage)
    spans = collector.of("headroom-epp")
    whole, decision = spans["gateway.request"], spans[DECISION]
    assert (whole.trace, whole.parent, decision.parent) == (TRACE, CALLER, whole.id)
    assert seen_by_server(stage) == ["00", TRACE, whole.id, "01"]
    assert stage.servers[0].headers["tracestate"] == "vendor=1"
    assert whole.begin <= decision.begin <= decision.end <= whole.end
    assert whole.attributes["gen_ai.request.model"] == "m"
    assert whole.attributes["http.response.status_code"] == 200
    assert whole.attributes["llm_d.epp.served_by"] == stage.servers[0].address
    assert whole.attributes["gen_ai.usage.output_tokens"] == 10
    assert whole.events == ("first_byte",)
    assert decision.attributes["llm_d.epp.endpoint"] == stage.servers[0].address
    assert not whole.failed


async def test_the_parents_sampling_is_honoured_and_begun_traces_are_sampled(
    stage: Stage, collector: Collector
) -> None:
    await stage.start(*tracing(collector, percent=100), servers=1)
    unsampled = f"00-{TRACE}-{CALLER}-00"
    await post(stage, prompt(100), traceparent=unsampled)
    assert stage.servers[0].headers["traceparent"] == unsampled
    await post(stage, prompt(100))
    _, trace, parent, flags = seen_by_server(stage)
    await exported(stage)
    assert {each.trace for each in collector.spans} == {trace}
    assert collector.of("headroom-epp")["gateway.request"].id == parent
    assert int(flags, 16) & SAMPLED


async def test_at_0_percent_a_request_without_a_parent_is_not_traced(
    stage: Stage, collector: Collector
) -> None:
    await stage.start(*tracing(collector, percent=0), servers=1)
    await post(stage, prompt(100))
    await exported(stage)
    assert collector.spans == []
    # The server's own sampler follows: nothing of a request is traced, or all of it.
    assert not int(seen_by_server(stage)[3], 16) & SAMPLED


async def test_a_refusal_is_a_failed_trace(stage: Stage, collector: Collector) -> None:
    await stage.start(*tracing(collector), servers=1)
    stage.offer()
    async with stage.client.post(stage.url + "/v1/completions", data=prompt(100)) as response:
        assert response.status == 503
    await exported(stage)
    spans = collector.of("headroom-epp")
    assert spans["gateway.request"].failed
    assert spans["gateway.request"].attributes["llm_d.epp.outcome"] == "rejected-no-endpoints"
    assert spans[DECISION].failed


async def test_a_collector_that_is_away_costs_no_request(stage: Stage) -> None:
    await stage.start("--tracing-endpoint=http://127.0.0.1:1", "--tracing-sampling-percent=100", servers=1)
    for number in range(20):
        await post(stage, prompt(100, number))
    await stage.settled()


async def test_without_the_flag_the_trace_context_passes_untouched(stage: Stage) -> None:
    await stage.start(servers=1)
    given = f"00-{TRACE}-{CALLER}-01"
    await post(stage, prompt(100), traceparent=given)
    assert stage.servers[0].headers["traceparent"] == given


async def test_the_access_log_has_a_line_for_each_request(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    await stage.start("--access-log", servers=1)
    objective = {"x-request-id": "plain", "x-llm-d-inference-objective": "chat"}
    await post(stage, prompt(2000), **objective)
    async with stage.client.post(
        stage.url + "/v1/completions", data=streaming(2000, 1), headers={"x-request-id": "streamed"}
    ) as response:
        await response.read()
    stage.offer()
    async with stage.client.get(stage.url + "/v1/models", headers={"x-request-id": "refused"}) as response:
        assert response.status == 503
    await stage.settled()
    text = ""

    def written() -> bool:
        nonlocal text
        text += capsys.readouterr().out
        return text.count("\n") == 3

    await until(written)
    lines = {line["requestId"]: line for line in map(json.loads, text.splitlines())}
    plain, streamed, refused = lines["plain"], lines["streamed"], lines["refused"]
    assert (plain["model"], plain["objective"], plain["status"]) == ("m", "chat", 200)
    assert plain["endpoint"] == plain["servedBy"] == stage.servers[0].address
    assert (plain["outcome"], plain["ending"], plain["outputTokens"]) == ("picked", "completed", 10)
    assert 0 < plain["ttftSeconds"] <= plain["durationSeconds"]
    assert streamed["streaming"]
    assert (refused["status"], refused["outcome"], refused["ending"]) == (
        503,
        "rejected-no-endpoints",
        "refused",
    )
    assert (refused["endpoint"], refused["ttftSeconds"]) == ("", None)
    body = json.loads(prompt(2000))["prompt"]
    assert body[:32] not in text


async def test_scores_are_in_the_metadata_when_they_are_asked_for(stage: Stage) -> None:
    await stage.start("--emit-endpoint-scores")
    await post(stage, prompt(100))
    await stage.settled()
