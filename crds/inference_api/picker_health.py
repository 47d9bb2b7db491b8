"""What a picker says of the connections to it and from it, within its answer to the operator. Pure."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

#: Ports and kinds that an answer may have; a pool has at most eight target ports.
MOST_PORTS: Final = 16
MOST_KINDS: Final = 16

# Kinds of failed handshakes that the operator makes a condition of. They are lean_grpc.HandshakeFailure's.
CLEARTEXT_HTTP2: Final = "cleartext_http2"
NO_HTTP2: Final = "no_http2"
UNTRUSTED: Final = "untrusted"

_Count = Annotated[int, Field(ge=0)]


class PortHealth(BaseModel):
    """How the ready endpoints of one target port answer the picker, by number.

    The counts are of endpoints that failed several times in a row. What `total` has beyond their sum answers
    with metrics, or has not been asked yet.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    port: Annotated[int, Field(ge=1, le=65535)]
    total: _Count
    """Ready endpoints on this port."""
    refused: _Count = 0
    """Connection refused: nobody listens."""
    unreachable: _Count = 0
    """No connection for another reason, such as silence or no route."""
    silent: _Count = 0
    """Connected, but no whole answer in time."""
    without_metrics: _Count = 0
    """Answered with something else than a metrics page with the expected series."""

    @property
    def unconnected(self) -> int:
        """Endpoints to which no connection can be made."""
        return self.refused + self.unreachable


class PickerHealth(BaseModel):
    """What a picker sees of its proxies and endpoints."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    failed_handshakes: Annotated[tuple[str, ...], Field(max_length=MOST_KINDS)] = ()
    """Kinds of handshakes that failed on the ext-proc port within the last five minutes, sorted."""
    connected: bool = False
    """A proxy is connected to the ext-proc port."""
    ports: Annotated[tuple[PortHealth, ...], Field(max_length=MOST_PORTS)] = ()
    """Every target port with ready endpoints, in ascending order; empty while metrics are not scraped."""
    settled: bool = True
    """False while an endpoint that became ready lately has not been heard of: ask again soon."""
