"""gRPC over HTTP/2 for asyncio: a sans-IO core with thin client and server shells.

`__all__` is the public interface; transport/README.md shows its use.
"""

from lean_grpc.aio.address import Backoff
from lean_grpc.aio.channel import Channel
from lean_grpc.aio.handshakes import FailedHandshake, HandshakeFailure
from lean_grpc.aio.health import HealthService
from lean_grpc.aio.response import MessageStream
from lean_grpc.aio.server import HandlerFactory, Server
from lean_grpc.aio.tls import (
    ServerCertificate,
    client_context,
    replace_certificate,
    self_signed_server,
    server_context,
)
from lean_grpc.aio.unary import UnaryFunction
from lean_grpc.calls.client_call import ClientCall, ResponseHandler, Status
from lean_grpc.calls.handler import Handler
from lean_grpc.calls.metadata import Metadata
from lean_grpc.calls.server_call import ServerCall
from lean_grpc.limits import CHANNEL_LIMITS, DEFAULT_LIMITS, Limits
from lean_grpc.status import CallError, StatusCode

__all__ = [
    "CHANNEL_LIMITS",
    "DEFAULT_LIMITS",
    "Backoff",
    "CallError",
    "Channel",
    "ClientCall",
    "FailedHandshake",
    "Handler",
    "HandlerFactory",
    "HandshakeFailure",
    "HealthService",
    "Limits",
    "MessageStream",
    "Metadata",
    "ResponseHandler",
    "Server",
    "ServerCall",
    "ServerCertificate",
    "Status",
    "StatusCode",
    "UnaryFunction",
    "client_context",
    "replace_certificate",
    "self_signed_server",
    "server_context",
]
