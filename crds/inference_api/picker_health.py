"""A picker's report on the connections to it and from it: a part of its answer to the operator. Pure."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

#: Ports and kinds that an answer may have; a pool has at most eight target ports.
MOST_PORTS: Final = 16
MOST_KINDS: Final = 16
#: Signals of an endpoint that an answer may name.
MOST_SIGNALS: Final = 16

# Kinds of failed handshakes that the operator reports in a condition. They are lean_grpc.HandshakeFailure's.
CLEARTEXT_HTTP2: Final = "cleartext_http2"
NO_HTTP2: Final = "no_http2"
UNTRUSTED: Final = "untrusted"

_Count = Annotated[int, Field(ge=0)]


class PortHealth(BaseModel):
    """Numbers of ready endpoints of one target port, by the result of the picker's scrapes.

    The counts cover endpoints that failed several times in a row. The rest of `total` answers with metrics,
    or has not been scraped yet.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    port: Annotated[int, Field(ge=1, le=65535)]
    total: _Count
    """Ready endpoints on this port."""
    refused: _Count = 0
    """Connection refused: no process listens."""
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
    """The state of a picker's connections from proxies and to endpoints."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    failed_handshakes: Annotated[tuple[str, ...], Field(max_length=MOST_KINDS)] = ()
    """Kinds of handshakes that failed on the ext-proc port within the last five minutes, sorted."""
    connected: bool = False
    """A proxy is connected to the ext-proc port."""
    ports: Annotated[tuple[PortHealth, ...], Field(max_length=MOST_PORTS)] = ()
    """Every target port with ready endpoints, in ascending order; empty while metrics are not scraped."""
    missing_signals: Annotated[tuple[str, ...], Field(max_length=MOST_SIGNALS)] = ()
    """Signals that are configured and found on the metrics page of no ready endpoint: "kv_usage", say."""
    settled: bool = True
    """False while an endpoint that became ready lately has no result yet: ask again soon."""
