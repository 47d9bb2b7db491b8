"""The node's network: a pair of interfaces joins its namespace with this machine's, which gets two routes.

The pair goes with the namespace when the node's last process ends, and the routes go with the pair.
"""

import ipaddress
import json
import subprocess
from dataclasses import dataclass
from typing import Final

from local_cluster.control_plane import Addresses
from local_cluster.errors import StartError

_COUNT: Final = 40
_FIRST: Final = 200
_INSIDE: Final = "eth0"


@dataclass(frozen=True, slots=True)
class Network:
    """The addresses of one kubelet node; up to 40 of a machine differ by `number`."""

    number: int

    @property
    def interface(self) -> str:
        """This machine's end of the pair. Only one node can have an interface of this name."""
        return f"headroom{self.number}"

    @property
    def whole(self) -> str:
        """CIDR that holds all the others."""
        return f"10.{_FIRST + self.number}.0.0/16"

    @property
    def host(self) -> str:
        """Address of this machine, at which the API server listens."""
        return f"10.{_FIRST + self.number}.0.1"

    @property
    def node(self) -> str:
        """Address of the node; its DNS server listens there."""
        return f"10.{_FIRST + self.number}.0.2"

    @property
    def pods(self) -> str:
        """CIDR of the pods."""
        return f"10.{_FIRST + self.number}.1.0/24"

    @property
    def services(self) -> str:
        """CIDR of the Services."""
        return f"10.{_FIRST + self.number}.128.0/20"

    @property
    def addresses(self) -> Addresses:
        """What the control plane has to know of it."""
        return Addresses(self.host, self.node, self.services, routed=True)


def connect(namespace_pid: int) -> Network:
    """Join the network namespace of a process with this machine's, on the first network that is free.

    Raises:
        StartError: `ip` refused, or no network is free.
    """
    routed = [ipaddress.ip_network(each) for each in _routes()]
    refusal = "every network from 10.200.0.0/16 on is routed already"
    for number in range(_COUNT):
        network = Network(number)
        if any(each.overlaps(ipaddress.ip_network(network.whole)) for each in routed):
            continue
        pair = ("link", "add", network.interface, "type", "veth", "peer", "name", _INSIDE)
        refused = _ip(*pair, "netns", str(namespace_pid))
        if not refused:
            _address(network, namespace_pid)
            return network
        refusal = refused  # another node may have taken the interface a moment ago
    message = f"no network for the node: {refusal}"
    raise StartError(message)


def _address(network: Network, namespace_pid: int) -> None:
    inside = ("nsenter", f"--net=/proc/{namespace_pid}/ns/net")
    for arguments in (
        ("address", "add", f"{network.node}/24", "dev", _INSIDE),
        ("link", "set", "lo", "up"),
        ("link", "set", _INSIDE, "up"),
        # Also what Service addresses follow on their way to kube-proxy's rules.
        ("route", "add", "default", "via", network.host),
    ):
        _must(_ip(*arguments, before=inside))
    _must(_ip("address", "add", f"{network.host}/24", "dev", network.interface))
    _must(_ip("link", "set", network.interface, "up"))
    for cidr in (network.pods, network.services):
        _must(_ip("route", "add", cidr, "via", network.node, "dev", network.interface))


def _routes() -> list[str]:
    argv = ("ip", "-4", "-json", "route", "show", "table", "all")
    done = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603 - no shell
    if done.returncode != 0:
        raise StartError(f"ip route: {done.stderr.strip()}")
    found = (str(each["dst"]) for each in json.loads(done.stdout or "[]"))
    return [each for each in found if each != "default"]


def _ip(*arguments: str, before: tuple[str, ...] = ()) -> str:
    """Run `ip`; return why it refused, "" when it did not."""
    done = subprocess.run([*before, "ip", *arguments], capture_output=True, text=True, check=False)  # noqa: S603
    return "" if done.returncode == 0 else f"ip {' '.join(arguments)}: {done.stderr.strip()}"


def _must(refused: str) -> None:
    if refused:
        raise StartError(refused)
