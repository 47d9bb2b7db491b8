"""The addresses that a program in a pod listens on. Pure."""

import ipaddress
from typing import Final

LOOPBACK: Final = "127.0.0.1"


def pod_addresses(pod_ip: str) -> tuple[str, ...]:
    """Return the addresses to listen on in a pod whose address is `pod_ip`; "" outside of one.

    They are the pod's own and 127.0.0.1, which `kubectl port-forward` dials. A pod's address that is itself a
    loopback address shows that pods share the machine's network, where 127.0.0.1 belongs to no single pod.
    """
    if not pod_ip:
        return (LOOPBACK,)
    return (pod_ip,) if has_shared_loopback(pod_ip) else (pod_ip, LOOPBACK)


def has_shared_loopback(pod_ip: str) -> bool:
    """Return whether 127.0.0.1 of a pod with this address is that of other pods, too."""
    try:
        return ipaddress.ip_address(pod_ip).is_loopback
    except ValueError:
        return False


def parse_addresses(text: str) -> tuple[str, ...]:
    """Return IP literals, given by commas, without brackets.

    Raises:
        ValueError: one is no IP address; the text names it.
    """
    found = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        try:
            found.append(str(ipaddress.ip_address(each.strip("[]"))))
        except ValueError:
            message = f"{each!r} is no IP address"
            raise ValueError(message) from None
    if not found:
        message = f"{text!r} names no IP address"
        raise ValueError(message)
    return tuple(found)
