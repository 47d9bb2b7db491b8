"""The types of a gRPC handler and the limits of the ext-proc port. Types and values only.

`Handler` is lean_grpc's. `Stream` is ext_proc's protocol of a call, so that tests can pass their own.
"""

from collections.abc import Callable, Mapping
from typing import Final

from ext_proc.call import Stream
from lean_grpc import Handler, Limits, Metadata, StatusCode

__all__ = ["LIMITS", "Handler", "HandlerFactory", "Metadata", "Routes", "StatusCode", "Stream"]


HandlerFactory = Callable[[Stream], Handler]
#: Full method path, such as "/grpc.health.v1.Health/Check", to the factory of its handlers.
Routes = Mapping[str, HandlerFactory]

#: An ext-proc stream lives as long as its HTTP request. An Envoy worker puts all its streams on one
#: connection. The stream window holds four of Envoy's 64 KiB pieces. At 64 KiB unsent (`stream_send_low`) the
#: handler's `writable` sends the next pieces of a body. Only a handler that goes on after `send` returned
#: False reaches the two send limits.
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
