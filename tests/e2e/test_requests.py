"""Requests through the real Envoy and the real picker: odd bodies, priorities, an empty pool."""

import socket
from collections.abc import Coroutine
from typing import Any
from urllib.parse import urlsplit

import pytest

from headroom_cli.demo.api import wait_for
from headroom_cli.demo.load import MODEL, Load, Once
from headroom_cli.demo.scenarios import in_flight, settle
from headroom_cli.demo.stage import Stage
from model_server_sim.client import Ask, InferenceClient, Result

SHEDDABLE = {"x-llm-d-inference-objective": "batch"}


def send(stage: Stage, body: bytes, **headers: str) -> Result:
    def ask(client: InferenceClient) -> Coroutine[Any, Any, Result]:
        return client.send_raw(body, headers=headers)

    return Once(stage.proxy_url())(ask)


def ask(stage: Stage, wanted: Ask) -> Result:
    return Once(stage.proxy_url(), timeout_s=120)(lambda client: client.send(wanted))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        pytest.param(b"this is not JSON", "JSON", id="not JSON"),
        pytest.param(b'{"prompt": "no model"}', "model", id="no model"),
        pytest.param(b"[" * 100_000, "not a JSON object", id="a list without end"),
        pytest.param(b'{"prompt": ' + b"[" * 100_000, "nested too deeply", id="nested without end"),
        pytest.param(b"", "", id="empty"),
    ],
)
def test_a_bad_body_gets_400(stage: Stage, body: bytes, says: str) -> None:
    result = send(stage, body)
    assert result.status == 400
    assert says in result.text


def test_a_body_that_is_cut_short_ends_the_connection_and_leaves_nothing_behind(stage: Stage) -> None:
    settle(stage)
    address = urlsplit(stage.proxy_url())
    with socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=30) as connection:
        head = (
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
            b"content-type: application/json\r\ncontent-length: 1000\r\n\r\n"
        )
        connection.sendall(head + b'{"model": "qwen", "prompt": "cut')
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(65536)
    assert b" 200 " not in answer[:20]
    picker = stage.picker_pod()["status"]["podIP"]
    wait_for("the ledger to return to zero", lambda: in_flight(picker) == 0, limit_s=60)


def test_a_body_of_20_mb_is_served(stage: Stage) -> None:
    result = ask(stage, Ask(model=MODEL, prompt="Large.", padding_bytes=20_000_000))
    assert result.error == ""
    assert result.status == 200


def test_a_client_cannot_choose_its_own_endpoint(stage: Stage) -> None:
    wanted = stage.servers()[0]["status"]["podIP"]
    served = set()
    for number in range(12):
        headers = {"x-gateway-destination-endpoint": f"{wanted}:8000"}
        result = ask(stage, Ask(model=MODEL, prompt=f"{number} " * 200, headers=headers))
        assert result.status == 200
        served.add(result.served_by)
    assert len(served) > 1


def test_a_sheddable_request_is_turned_away_while_the_pool_is_saturated(stage: Stage) -> None:
    settle(stage)
    assert ask(stage, Ask(model=MODEL, headers=SHEDDABLE)).status == 200
    with Load(stage.proxy_url(), in_flight=60, saturating=True):
        refused, _ = wait_for("a refusal", lambda: _refused(stage), limit_s=60, every_s=0.2)
        assert "saturated" in refused.text
        assert ask(stage, Ask(model=MODEL, prompt="I matter.", max_tokens=1)).status == 200


def _refused(stage: Stage) -> Result | None:
    result = ask(stage, Ask(model=MODEL, prompt="I can wait.", max_tokens=1, headers=SHEDDABLE))
    return result if result.status == 429 else None


def test_a_pool_without_endpoints_answers_503_and_says_so(stage: Stage) -> None:
    settle(stage)
    deployment = stage.path("Deployment", "vllm-qwen")
    stage.api.patch(deployment, {"spec": {"replicas": 0}})
    try:
        reason, _ = stage.await_condition("EndpointsReady", "False", limit_s=60)
        assert reason
        result, _ = wait_for("a 503", lambda: _unavailable(stage), limit_s=60, every_s=0.2)
        assert "no ready endpoint" in result.text
    finally:
        stage.api.patch(deployment, {"spec": {"replicas": 3}})
        settle(stage)


def _unavailable(stage: Stage) -> Result | None:
    result = ask(stage, Ask(model=MODEL, prompt="Anybody?"))
    return result if result.status == 503 else None
