"""The conditions EndpointsReachable and PickerReachable, from the picker's answer. Pure."""

from collections.abc import Callable, Iterable
from typing import Final

from inference_api.picker_health import CLEARTEXT_HTTP2, NO_HTTP2, UNTRUSTED, PortHealth
from inference_operator.core import reasons
from inference_operator.core.desired.ports import picker_ports
from inference_operator.core.observation import Observation
from inference_operator.core.rollout import Judgement

#: Kinds of failed handshakes that only a gateway's settings cause; the first that was seen gives the reason.
#: Probes and port scans cause the other kinds, too.
_GATEWAY_FAULTS: Final = {
    CLEARTEXT_HTTP2: reasons.GATEWAY_WITHOUT_TLS,
    UNTRUSTED: reasons.CERTIFICATE_NOT_TRUSTED,
    NO_HTTP2: reasons.GATEWAY_WITHOUT_HTTP2,
}


def judge_endpoints(seen: Observation) -> Judgement:
    """Return whether each target port has an endpoint that the picker can connect to."""
    health = seen.picker_answer.health
    if health is None:
        return Judgement("Unknown", reasons.CONTACTS_UNKNOWN.say())
    wanted = {port.number for port in seen.pool.spec.target_ports} if seen.pool is not None else None
    ports = [port for port in health.ports if wanted is None or port.port in wanted]
    if not ports:
        return Judgement("Unknown", reasons.CONTACTS_NOT_HEARD.say())
    dead = [port for port in ports if port.total and port.unconnected == port.total]
    if dead:
        return Judgement("False", reasons.PORT_UNREACHABLE.say(ports=_spelled(dead, _connections)))
    some = [port for port in ports if port.unconnected]
    if some:
        return Judgement("True", reasons.SOME_UNREACHABLE.say(ports=_spelled(some, _connections)))
    blind = [port for port in ports if port.silent or port.without_metrics]
    if blind:
        return Judgement("True", reasons.WITHOUT_METRICS.say(ports=_spelled(blind, _answers)))
    if health.missing_signals:
        return Judgement("True", reasons.SIGNAL_MISSING.say(signals=", ".join(health.missing_signals)))
    return Judgement("True", reasons.ENDPOINTS_REACHABLE.say())


def judge_gateways(seen: Observation) -> Judgement:
    """Return False when a gateway's handshake failed lately for a reason in its settings, else True.

    Unknown while no picker pod has answered.
    """
    health = seen.picker_answer.health
    if health is None:
        return Judgement("Unknown", reasons.HANDSHAKES_UNKNOWN.say())
    for kind, reason in _GATEWAY_FAULTS.items():
        if kind in health.failed_handshakes:
            return Judgement("False", reason.say(port=picker_ports(seen).ext_proc))
    return Judgement("True", reasons.PICKER_REACHABLE.say())


def shuts_out_all(seen: Observation) -> bool:
    """Return whether no proxy is connected to the picker, so that failed handshakes concern all traffic."""
    health = seen.picker_answer.health
    return health is not None and not health.connected


def _spelled(ports: Iterable[PortHealth], facts: Callable[[PortHealth], dict[str, int]]) -> str:
    """Return, say, "port 8001: connection refused by 3 of 3 endpoints"."""
    return "; ".join(
        f"port {port.port}: "
        + ", ".join(
            f"{what} {count} of {port.total} endpoints" for what, count in facts(port).items() if count
        )
        for port in ports
    )


def _connections(port: PortHealth) -> dict[str, int]:
    return {"connection refused by": port.refused, "no connection to": port.unreachable}


def _answers(port: PortHealth) -> dict[str, int]:
    return {"no answer in time from": port.silent, "no metrics page from": port.without_metrics}
