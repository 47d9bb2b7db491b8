"""Addresses for pods: one each out of 127.64.0.0/10, all of which lead back to this machine."""

import ipaddress
import secrets
from typing import Final

RANGE: Final = ipaddress.ip_network("127.64.0.0/10")


class Addresses:
    """Hands out addresses in order, so that one is reused only after all others.

    Clusters on one machine share the range; each starts at a random address, or at index `first`.
    """

    def __init__(self, first: int | None = None) -> None:
        self._next = secrets.randbelow(RANGE.num_addresses) if first is None else first
        self._used: set[str] = set()

    def take(self) -> str:
        """Return an unused address; never one that ends in .0 or .255."""
        while True:
            address = RANGE[self._next % RANGE.num_addresses]
            self._next += 1
            if int(address) & 0xFF not in {0, 0xFF} and str(address) not in self._used:
                self._used.add(str(address))
                return str(address)

    def give_back(self, address: str) -> None:
        """Make an address available again."""
        self._used.discard(address)
