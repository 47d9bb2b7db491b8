"""What Service names resolve to, and the DNS server's answers."""

from typing import Any

import pytest
from dnslib import QTYPE, RCODE, DNSRecord
from hypothesis import given
from hypothesis import strategies as st

from local_cluster.node.dns import answer, fit_datagram
from local_cluster.node.names import hosts_file, resolver_file, service_addresses, service_key
from local_cluster.node.objects import Key


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("web.shop.svc.cluster.local.", ("shop", "web")),
        ("web.shop.svc.cluster.local", ("shop", "web")),
        ("web.shop.svc", ("shop", "web")),
        ("web.shop", ("shop", "web")),
        ("WEB.Shop.SVC", ("shop", "web")),
        ("web", None),
        ("a.web.shop.svc", None),
        ("web.shop.svc.svc.cluster.local", None),
        ("web.shop.pod.cluster.local", None),
        (".", None),
    ],
)
def test_names_of_services(name: str, expected: Key | None) -> None:
    assert service_key(name) == expected


def pod(address: str, *, ready: bool = True, **meta: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "shop", "name": address, "labels": {"app": "web"}, **meta},
        "status": {
            "phase": "Running",
            "podIP": address,
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }


def service(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "shop", "name": "web"}, "spec": {"selector": {"app": "web"}, **spec}}


PODS = [
    pod("127.64.0.1"),
    pod("127.64.0.2", ready=False),
    pod("127.64.0.3", deletionTimestamp="2026-01-01T00:00:00Z"),
    pod("127.64.0.4", labels={"app": "other"}),
    pod("127.64.0.5", namespace="elsewhere"),
    {**pod("127.64.0.6"), "status": {"phase": "Pending"}},
]


def test_a_service_stands_for_its_ready_pods() -> None:
    assert service_addresses(service(), PODS) == ["127.64.0.1"]


def test_a_service_that_publishes_unready_addresses_stands_for_all_its_pods() -> None:
    found = service_addresses(service(publishNotReadyAddresses=True), PODS)
    assert found == ["127.64.0.1", "127.64.0.2", "127.64.0.3"]


def test_a_service_without_selector_stands_for_nothing() -> None:
    assert service_addresses({**service(), "spec": {}}, PODS) == []


def lookup(key: Key) -> list[str] | None:
    return {
        ("shop", "web"): ["127.64.0.1", "127.64.0.2"],
        ("shop", "idle"): [],
        ("shop", "big"): [f"127.64.1.{i}" for i in range(200)],
    }.get(key)


def ask(name: str, kind: str = "A") -> DNSRecord:
    reply = answer(bytes(DNSRecord.question(name, kind).pack()), lookup)
    assert reply is not None
    return DNSRecord.parse(reply)


def test_a_known_name_has_its_addresses_and_a_short_life() -> None:
    reply = ask("web.shop.svc.cluster.local")
    assert [str(record.rdata) for record in reply.rr] == ["127.64.0.1", "127.64.0.2"]
    assert {record.ttl for record in reply.rr} == {1}


@pytest.mark.parametrize(("name", "kind"), [("web.shop", "AAAA"), ("idle.shop", "A"), ("web.shop", "SRV")])
def test_a_known_name_without_such_records_is_empty_not_absent(name: str, kind: str) -> None:
    reply = ask(name, kind)
    assert (reply.header.rcode, reply.rr) == (RCODE.NOERROR, [])


@pytest.mark.parametrize("name", ["nobody.shop.svc", "example.com", "www.example.com"])
def test_an_unknown_name_does_not_exist(name: str) -> None:
    assert ask(name).header.rcode == RCODE.NXDOMAIN


def test_a_long_answer_asks_to_come_back_by_tcp() -> None:
    whole = answer(bytes(DNSRecord.question("big.shop").pack()), lookup)
    assert whole is not None
    cut = DNSRecord.parse(fit_datagram(whole))
    assert cut.header.tc == 1
    assert QTYPE[cut.q.qtype] == "A"


@given(st.binary(max_size=600))
def test_no_message_is_fatal(message: bytes) -> None:
    reply = answer(message, lookup)
    assert reply is None or DNSRecord.parse(reply).header.qr == 1


def test_the_container_searches_its_own_namespace_first() -> None:
    lines = resolver_file("shop", "127.53.0.53").splitlines()
    assert lines[0] == "nameserver 127.53.0.53"
    assert lines[1] == "search shop.svc.cluster.local svc.cluster.local cluster.local"


def test_a_hosts_file_has_the_bare_name_for_the_own_namespace_only() -> None:
    services = [(("shop", "web"), ["127.64.0.1"]), (("other", "db"), ["127.64.0.9"])]
    lines = hosts_file("shop", "pod-1", "127.64.0.7", services).splitlines()
    assert "127.64.0.7 pod-1" in lines
    assert "127.64.0.1 web.shop.svc.cluster.local web.shop.svc web.shop web" in lines
    assert "127.64.0.9 db.other.svc.cluster.local db.other.svc db.other" in lines
