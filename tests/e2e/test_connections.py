"""Ports on which nobody listens, and a gateway without TLS: told by conditions of a running picker."""

import socket
from collections.abc import Mapping
from typing import Any

from headroom_cli.demo.api import wait_for
from headroom_cli.demo.coexistence import applied, pool, server_deployment
from headroom_cli.demo.scenarios import LIMIT_S
from headroom_cli.demo.stage import Stage
from inference_api import names

NAME = "ports"
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def await_reason(stage: Stage, kind: str, status: str, reason: str) -> str:
    """Wait until the condition says so; return its message."""

    def said() -> Mapping[str, Any] | None:
        found = stage.condition(kind) or {}
        return found if (found.get("status"), found.get("reason")) == (status, reason) else None

    found, _ = wait_for(f"{kind}={status}, {reason}", said, limit_s=LIMIT_S)
    return str(found["message"])


def give_ports(stage: Stage, *numbers: int) -> None:
    ports = [{"number": number} for number in numbers]
    stage.api.patch(stage.pool_path(), {"spec": {"targetPorts": ports}})


def test_a_port_without_listeners_and_a_gateway_without_tls_are_told(stage: Stage) -> None:
    other = stage.beside(NAME)
    with applied(other, [pool(NAME), server_deployment(stage, NAME)]):
        await_reason(other, "EndpointsReachable", "True", "EndpointsReachable")
        other.await_condition("Ready", "True", limit_s=LIMIT_S)

        give_ports(other, 8000, 8001)
        message = await_reason(other, "EndpointsReachable", "False", "PortUnreachable")
        assert "port 8001: connection refused by 2 of 2 endpoints" in message
        await_reason(other, "Ready", "False", "PortUnreachable")

        give_ports(other, 8000)
        await_reason(other, "EndpointsReachable", "True", "EndpointsReachable")

        give_ports(other, 8001)  # as many endpoints as before
        message = await_reason(other, "EndpointsReachable", "False", "PortUnreachable")
        assert "port 8001: connection refused by 2 of 2 endpoints" in message

        give_ports(other, 8000)
        await_reason(other, "EndpointsReachable", "True", "EndpointsReachable")
        other.await_condition("Ready", "True", limit_s=LIMIT_S)

        picker = other.picker_pod()["status"]["podIP"]
        with socket.create_connection((picker, names.EXT_PROC_PORT), timeout=30) as gateway:
            gateway.sendall(HTTP2_PREFACE)
            message = await_reason(other, "PickerReachable", "False", "GatewayWithoutTLS")
            assert "DestinationRule" in message
            await_reason(other, "Ready", "False", "GatewayWithoutTLS")
