"""Versions and lock entries, as read from text; addresses; probe verdicts."""

import sys
from pathlib import Path

import pytest

from local_cluster.binaries import etcd_version, kubernetes_version, required_version
from local_cluster.node.addresses import RANGE, Addresses
from local_cluster.node.probes import Probe, Streak, port_number
from local_cluster.tools import GO_WHEEL, parse_go_version
from local_cluster.wheels import locked, missing_wheels


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("go version go1.26.3 linux/amd64", (1, 26)),
        ("go version go1.26rc1 linux/amd64", (1, 26)),
        ("nonsense", None),
    ],
)
def test_the_version_is_read_from_go_version(text: str, expected: tuple[int, int] | None) -> None:
    assert parse_go_version(text) == expected


LOCK = "one==1 \\\n    --hash=sha256:aa\ntwo==2 \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc\n"


def test_only_the_needed_entries_of_a_lock_are_given() -> None:
    assert locked(LOCK, ["two"]) == "two==2 \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc\n"
    assert locked(LOCK, []) == ""


def test_versions_come_from_go_mod() -> None:
    text = "module m\n\nrequire k8s.io/one v1.2.3\n\nrequire (\n\tk8s.io/two v4.5.6 // indirect\n)\n"
    assert required_version(text, "k8s.io/one") == "v1.2.3"
    assert required_version(text, "k8s.io/two") == "v4.5.6"
    with pytest.raises(ValueError, match="three"):
        required_version(text, "k8s.io/three")
    assert kubernetes_version().startswith("v1.")
    assert etcd_version().startswith("v3.")


def test_addresses_differ_and_come_back_last() -> None:
    addresses = Addresses(first=0)
    taken = [addresses.take() for _ in range(600)]
    assert len(set(taken)) == 600
    assert taken[0] == "127.64.0.1"
    assert not [each for each in taken if each.rpartition(".")[2] in {"0", "255"}]
    addresses.give_back(taken[0])
    assert addresses.take() not in taken


def test_addresses_wrap_around_and_skip_those_in_use() -> None:
    addresses = Addresses(first=RANGE.num_addresses - 2)
    assert [addresses.take(), addresses.take()] == ["127.127.255.254", "127.64.0.1"]


def test_a_verdict_needs_enough_results_in_a_row() -> None:
    streak = Streak(Probe.parse({"failureThreshold": 3, "successThreshold": 2}))
    results = [True, True, False, False, True, False, False, False]
    assert [streak.add(each) for each in results] == [None, True, None, None, None, None, None, False]


def test_a_probe_may_have_a_grace_period_of_its_own() -> None:
    assert Probe.parse({}).grace_s(30) == 30
    assert Probe.parse({"terminationGracePeriodSeconds": 1}).grace_s(30) == 1


def test_a_port_may_be_named() -> None:
    container = {"ports": [{"name": "http", "containerPort": 8080}]}
    assert (port_number("http", container), port_number(9, container)) == (8080, 9)
    with pytest.raises(ValueError, match="grpc"):
        port_number("grpc", container)


def test_a_control_plane_that_is_built_needs_no_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert GO_WHEEL not in missing_wheels(built=True)
