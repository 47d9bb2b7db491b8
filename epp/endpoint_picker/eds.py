"""Endpoint discovery for Envoy: the pool's ready endpoints over StreamEndpoints, state of the world.

A proxy keeps the last assignment that it got. Nothing is sent before the pool is known: an empty assignment
from a picker that has just started would remove all endpoints of the proxy. A pool known to be empty is sent.
"""

import logging
from collections.abc import Sequence
from typing import Any, Final, cast

from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError

from endpoint_picker.transport import Metadata, Routes, StatusCode, Stream
from inference_api.names import EDS_CLUSTER

STREAM_METHOD: Final = "/envoy.service.endpoint.v3.EndpointDiscoveryService/StreamEndpoints"
TYPE_URL: Final = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
_HEALTHY: Final = 1

_log = logging.getLogger(__name__)
_endpoints: Final = cast("Any", endpoint_pb2)
_discovery: Final = cast("Any", discovery_pb2)


class EndpointFeed:
    """The current assignment and the streams that follow it. All streams are sent the same bytes."""

    __slots__ = ("_addresses", "_epoch", "_number", "_streams", "payload", "version")

    def __init__(self, epoch: str) -> None:
        """`epoch` begins every version, so that versions of an earlier process never match."""
        self._epoch = epoch
        self._number = 0
        self._addresses: tuple[str, ...] | None = None
        self._streams: set[_EndpointStream] = set()
        self.version = ""
        """Version of `payload`, also its nonce; "" before the first."""
        self.payload = b""

    def publish(self, addresses: Sequence[str]) -> None:
        """Send the ready endpoints ("ip:port", IPv6 in brackets) on all streams, if they have changed."""
        ordered = tuple(sorted(addresses))
        if ordered == self._addresses:
            return
        self._addresses = ordered
        self._number += 1
        self.version = f"{self._epoch}-{self._number}"
        self.payload = _response(self.version, ordered)
        for stream in tuple(self._streams):
            stream.changed()

    def follow(self, stream: "_EndpointStream") -> None:
        """Add a stream."""
        self._streams.add(stream)

    def leave(self, stream: "_EndpointStream") -> None:
        """Remove a stream."""
        self._streams.discard(stream)

    def close(self) -> None:
        """End all streams. Their proxies ask another picker and keep their endpoints until it answers."""
        for stream in tuple(self._streams):
            stream.ended()


def _response(version: str, addresses: Sequence[str]) -> bytes:
    assignment = _endpoints.ClusterLoadAssignment(cluster_name=EDS_CLUSTER)
    if addresses:
        locality = assignment.endpoints.add()
        for address in addresses:
            host, _, port = address.rpartition(":")
            entry = locality.lb_endpoints.add(health_status=_HEALTHY)
            socket = entry.endpoint.address.socket_address
            socket.address = host.strip("[]")
            socket.port_value = int(port)
    resource = AnyMessage(type_url=TYPE_URL, value=assignment.SerializeToString(deterministic=True))
    response = _discovery.DiscoveryResponse(
        version_info=version, resources=[resource], type_url=TYPE_URL, nonce=version
    )
    return cast("bytes", response.SerializeToString())


class _EndpointStream:
    """One StreamEndpoints call."""

    __slots__ = ("_blocked", "_feed", "_refused", "_sent", "_stream", "_wanted")

    def __init__(self, stream: Stream, feed: EndpointFeed) -> None:
        self._stream = stream
        self._feed = feed
        self._wanted = False
        self._sent = ""
        self._refused = ""
        self._blocked = False

    def opened(self, metadata: Metadata) -> None:
        self._feed.follow(self)

    def received(self, payload: bytes) -> None:
        """Take a subscription, an ACK or a NACK."""
        try:
            request = _discovery.DiscoveryRequest.FromString(payload)
        except DecodeError:
            self._finish(StatusCode.INVALID_ARGUMENT, "the message is no DiscoveryRequest")
            return
        if request.type_url not in {"", TYPE_URL}:
            self._finish(StatusCode.INVALID_ARGUMENT, "this service has ClusterLoadAssignment only")
            return
        if request.response_nonce and request.response_nonce != self._sent:
            return  # an ACK or NACK of an older version
        wanted = EDS_CLUSTER in request.resource_names or not request.resource_names
        if request.HasField("error_detail"):
            self._note_refusal(request.error_detail.message)
        elif not request.response_nonce or (wanted and not self._wanted):
            self._sent = ""  # forget the sent version: a new subscription must be answered
        self._wanted = wanted
        self.changed()

    def changed(self) -> None:
        """Send the current assignment once a version; one that the proxy refused is not repeated."""
        feed = self._feed
        if self._wanted and not self._blocked and feed.version and self._sent != feed.version:
            self._sent = feed.version
            self._blocked = not self._stream.send(feed.payload)

    def ended(self) -> None:
        self._feed.leave(self)
        self._stream.finish()

    def aborted(self, code: StatusCode) -> None:
        self._feed.leave(self)

    def writable(self) -> None:
        """Send the latest version; versions that came while the stream was blocked are skipped."""
        self._blocked = False
        self.changed()

    def _note_refusal(self, message: str) -> None:
        if self._refused != self._sent:
            self._refused = self._sent
            _log.warning(
                "proxy refused the endpoints", extra={"version": self._sent, "reason": message[:500]}
            )

    def _finish(self, code: StatusCode, message: str) -> None:
        self._feed.leave(self)
        self._stream.finish(code, message)


def eds_routes(feed: EndpointFeed) -> Routes:
    """Return the route of StreamEndpoints, served from `feed`."""
    return {STREAM_METHOD: lambda stream: _EndpointStream(stream, feed)}
