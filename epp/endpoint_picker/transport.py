"""How a call reaches the picker: what handlers are given, and the bounds of the port. Types and values only.

A handler is lean_grpc's; what it needs of a call is ext_proc's, so that tests can stand in for it.
"""

from collections.abc import Callable, Mapping
from typing import Final

from ext_proc.call import Stream
from lean_grpc import Handler, Limits, Metadata, StatusCode

__all__ = ["LIMITS", "Handler", "HandlerFactory", "Metadata", "Routes", "StatusCode", "Stream"]


HandlerFactory = Callable[[Stream], Handler]
#: Full method path, such as "/grpc.health.v1.Health/Check", to the factory of its handlers.
Routes = Mapping[str, HandlerFactory]

#: An ext-proc stream lives as long as its HTTP request, and an Envoy holds all of one worker on a connection.
#: Windows are a few of Envoy's 64 KiB pieces a stream. A stream sends on at 64 KiB, with the next pieces of a
#: body; the limits above that are only met by a handler that sends against the answer of `send`.
LIMITS: Final = Limits(
    max_concurrent_streams=20_000,
    max_connections=4_096,
    stream_window=256 * 1024,
    connection_window=64 * 1024 * 1024,
    max_receive_message=16 * 1024 * 1024,
    max_send_message=16 * 1024 * 1024,
    stream_send_high=256 * 1024,
    stream_send_low=64 * 1024,
    stream_send_limit=4 * 1024 * 1024,
    connection_send_limit=512 * 1024 * 1024,
    keepalive_interval=30.0,
    keepalive_timeout=10.0,
)
