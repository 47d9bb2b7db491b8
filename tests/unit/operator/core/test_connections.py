"""What the operator makes of what the picker sees of its endpoints and proxies."""

from dataclasses import replace

import pytest

from inference_api.offered import Offered, OfferedText
from inference_api.picker_health import CLEARTEXT_HTTP2, NO_HTTP2, UNTRUSTED, PickerHealth, PortHealth
from inference_operator.core.endpoints import EndpointTally
from inference_operator.core.kinds import DEPLOYMENT
from inference_operator.core.observation import Observation
from inference_operator.core.ownership import judge
from inference_operator.core.picker_answers import conclude
from inference_operator.core.status import report
from observations import answered, observation, pool_body, settled

READY = {"replicas": 1, "readyReplicas": 1, "updatedReplicas": 1, "observedGeneration": 1}


def healthy() -> Observation:
    pool = observation(pool_body(targetPorts=[{"number": 8000}, {"number": 8001}]))
    seen = answered(replace(settled(pool), endpoints=EndpointTally(6, 6)))
    body = {**seen.children[DEPLOYMENT, "llm-epp"], "status": READY}
    return replace(seen, children={**seen.children, (DEPLOYMENT, "llm-epp"): body})


def conditions(*, health: PickerHealth) -> dict[str, tuple[str, str, str]]:
    seen = healthy()
    seen = replace(seen, picker_answer=replace(seen.picker_answer, health=health))
    made = report(seen, judge(seen))
    return {each.type: (each.status, each.reason, each.message) for each in made.status.conditions}


FINE = PortHealth(port=8000, total=3)


@pytest.mark.parametrize(
    ("ports", "status", "reason", "words"),
    [
        pytest.param((FINE,), "True", "EndpointsReachable", "on all ports", id="all answer"),
        pytest.param((), "Unknown", "NotHeard", "scrape", id="nothing known"),
        pytest.param(
            (PortHealth(port=9999, total=3),), "Unknown", "NotHeard", "scrape", id="ports of before only"
        ),
        pytest.param(
            (FINE, PortHealth(port=8001, total=3, refused=3)),
            "False",
            "PortUnreachable",
            "port 8001: connection refused by 3 of 3 endpoints",
            id="nobody listens on one port",
        ),
        pytest.param(
            (PortHealth(port=8000, total=3, refused=2, unreachable=1),),
            "False",
            "PortUnreachable",
            "port 8000: connection refused by 2 of 3 endpoints, no connection to 1 of 3 endpoints",
            id="in two ways",
        ),
        pytest.param(
            (PortHealth(port=8000, total=3, refused=1, without_metrics=2),),
            "True",
            "SomeUnreachable",
            "port 8000: connection refused by 1 of 3 endpoints.",
            id="one server is down",
        ),
        pytest.param(
            (PortHealth(port=8000, total=3, silent=1, without_metrics=2),),
            "True",
            "WithoutMetrics",
            "port 8000: no answer in time from 1 of 3 endpoints, no metrics page from 2 of 3 endpoints",
            id="no metrics",
        ),
    ],
)
def test_endpoints(ports: tuple[PortHealth, ...], status: str, reason: str, words: str) -> None:
    made = conditions(health=PickerHealth(ports=ports, connected=True))
    assert made["EndpointsReachable"][:2] == (status, reason)
    assert words in made["EndpointsReachable"][2]
    assert made["Ready"][:2] == (("False", reason) if status == "False" else ("True", "Ready"))


def test_a_signal_that_no_endpoint_shows() -> None:
    made = conditions(
        health=PickerHealth(ports=(FINE,), connected=True, missing_signals=("kv_usage", "blocks"))
    )
    assert made["EndpointsReachable"][:2] == ("True", "SignalMissing")
    assert "kv_usage, blocks" in made["EndpointsReachable"][2]
    assert made["Ready"][:2] == ("True", "Ready")


@pytest.mark.parametrize(
    ("kinds", "reason", "words"),
    [
        ((CLEARTEXT_HTTP2, UNTRUSTED), "GatewayWithoutTLS", "DestinationRule of docs/install.md"),
        ((NO_HTTP2, UNTRUSTED), "CertificateNotTrusted", "insecureSkipVerify"),
        ((NO_HTTP2,), "GatewayWithoutALPN", "ALPN h2"),
    ],
)
@pytest.mark.parametrize("connected", [False, True], ids=["no proxy", "another proxy"])
def test_gateways_that_do_not_connect(
    kinds: tuple[str, ...], reason: str, words: str, connected: bool
) -> None:
    made = conditions(health=PickerHealth(failed_handshakes=kinds, connected=connected, ports=(FINE,)))
    assert made["PickerReachable"][:2] == ("False", reason)
    assert words in made["PickerReachable"][2]
    assert "port 9002" in made["PickerReachable"][2]
    assert made["Ready"][:2] == (("True", "Ready") if connected else ("False", reason))


@pytest.mark.parametrize("kinds", [(), ("closed", "timeout"), ("cleartext_http1", "other", "unheard_of")])
def test_probes_and_scans_say_nothing_of_gateways(kinds: tuple[str, ...]) -> None:
    made = conditions(health=PickerHealth(failed_handshakes=kinds, ports=(FINE,)))
    assert made["PickerReachable"][:2] == ("True", "PickerReachable")
    assert made["Ready"][0] == "True"


def test_a_picker_older_than_the_field_is_not_judged_by_it() -> None:
    made = Offered.model_validate_json('{"config": {"mark": "new"}}')
    assert conclude("new", [made], []).health is None


def offered(health: PickerHealth) -> Offered:
    return Offered(config=OfferedText(mark="new"), health=health)


def test_of_several_pods_the_worst_of_each_port_and_every_kind_count() -> None:
    first = PickerHealth(failed_handshakes=("untrusted",), ports=(PortHealth(port=8001, total=3), FINE))
    second = PickerHealth(
        failed_handshakes=("cleartext_http2",),
        connected=True,
        ports=(PortHealth(port=8001, total=3, refused=2),),
        missing_signals=("kv_usage",),
        settled=False,
    )
    for said in ([first, second], [second, first]):
        answer = conclude("new", list(map(offered, said)), [])
        assert answer.health == PickerHealth(
            failed_handshakes=("cleartext_http2", "untrusted"),
            connected=True,
            ports=(FINE, PortHealth(port=8001, total=3, refused=2)),
            missing_signals=("kv_usage",),
            settled=False,
        )
        assert not answer.settled
