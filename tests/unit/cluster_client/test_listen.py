"""The addresses that a program in a pod listens on."""

import pytest

from cluster_client.listen import parse_addresses, pod_addresses


@pytest.mark.parametrize(
    ("pod_ip", "expected"),
    [
        pytest.param("10.1.2.3", ("10.1.2.3", "127.0.0.1"), id="a pod"),
        pytest.param("fd00::7", ("fd00::7", "127.0.0.1"), id="a pod with IPv6"),
        pytest.param("127.64.0.3", ("127.64.0.3",), id="pods share the machine's network"),
        pytest.param("", ("127.0.0.1",), id="no pod"),
    ],
)
def test_addresses_of_a_pod(pod_ip: str, expected: tuple[str, ...]) -> None:
    assert pod_addresses(pod_ip) == expected


def test_addresses_are_given_by_commas() -> None:
    assert parse_addresses("10.1.2.3, [fd00::7]") == ("10.1.2.3", "fd00::7")


@pytest.mark.parametrize("text", ["host", "10.1.2.3,host", ""])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no IP address"):
        parse_addresses(text)
