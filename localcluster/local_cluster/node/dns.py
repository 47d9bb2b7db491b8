"""A DNS server for Service names, over UDP and TCP. It answers for the cluster only and forwards nothing."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from dnslib import QTYPE, RCODE, RR, A, DNSRecord
from dnslib.dns import DNSError
from typing_extensions import override

from local_cluster.node.names import service_key
from local_cluster.node.objects import Key

_log = logging.getLogger(__name__)
PORT: Final = 53
TTL_S: Final = 1
_UDP_LIMIT: Final = 1232
_NETWORK: Final = "127.53"
_TRIES: Final = 200
_IDLE_S: Final = 10.0

#: The addresses of a Service; None when there is no such Service.
Lookup = Callable[[Key], list[str] | None]


def answer(request: bytes, lookup: Lookup) -> bytes | None:
    """Return the reply to one DNS message; None when it is not a query."""
    try:
        query = DNSRecord.parse(request)
    except (DNSError, ValueError, IndexError):
        return None
    if query.header.qr or not query.questions:
        return None
    reply = query.reply()
    key = service_key(str(query.q.qname))
    addresses = lookup(key) if key is not None else None
    if addresses is None:
        reply.header.rcode = RCODE.NXDOMAIN
    elif query.q.qtype in {QTYPE.A, QTYPE.ANY}:
        for address in addresses:
            reply.add_answer(RR(query.q.qname, QTYPE.A, ttl=TTL_S, rdata=A(address)))
    reply.header.aa = 1
    return bytes(reply.pack())


def fit_datagram(reply: bytes) -> bytes:
    """Return the reply, cut to its question with the truncation bit set where a datagram cannot hold it."""
    if len(reply) <= _UDP_LIMIT:
        return reply
    return bytes(DNSRecord.parse(reply).truncate().pack())


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._transport: asyncio.DatagramTransport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            "asyncio.DatagramTransport", transport
        )  # asyncio's own class does not inherit it

    @override
    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if self._transport is not None and (reply := answer(data, self._lookup)) is not None:
            self._transport.sendto(fit_datagram(reply), addr)


@dataclass(frozen=True, slots=True)
class DnsServer:
    """A running server; containers reach it at `address`."""

    address: str
    datagrams: asyncio.BaseTransport
    streams: asyncio.Server

    def close(self) -> None:
        """Stop answering."""
        self.datagrams.close()
        self.streams.close()


async def serve(lookup: Lookup) -> DnsServer | None:
    """Listen on the first free 127.53.x.53; None where this process may not use port 53."""
    for third in range(_TRIES):
        address = f"{_NETWORK}.{third}.53"
        try:
            return await listen(address, lookup)
        except PermissionError:
            _log.info("this user may not bind port %d: Service names go to hosts files", PORT)
            return None
        except OSError:
            continue  # another cluster of this machine listens there
    return None


async def listen(address: str, lookup: Lookup) -> DnsServer:
    """Answer on port 53 of an address. Raises OSError when it cannot be bound."""

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_IDLE_S):
                length = int.from_bytes(await reader.readexactly(2), "big")
                reply = answer(await reader.readexactly(length), lookup)
                if reply is not None:
                    writer.write(len(reply).to_bytes(2, "big") + reply)
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client broke off, or sent too little in time: it gets no answer
        finally:
            writer.close()

    streams = await asyncio.start_server(stream, address, PORT)
    loop = asyncio.get_running_loop()
    try:
        datagrams, _ = await loop.create_datagram_endpoint(
            lambda: _Datagrams(lookup), local_addr=(address, PORT)
        )
    except OSError:
        streams.close()
        raise
    return DnsServer(address, datagrams, streams)
