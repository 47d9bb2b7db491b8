"""The limits of a connection, each with its default. docs/transport.md says what happens at each.

A limit that guards against floods counts within one sweep, which the shells run every second
(`SWEEP_INTERVAL`); a user of the sans-IO core calls `Connection.sweep` itself.
"""

from dataclasses import dataclass

DEFAULT_WINDOW = 65_535
"""The window that HTTP/2 gives a stream and a connection before any SETTINGS (RFC 9113, 6.9.2)."""

MAX_WINDOW = 2**31 - 1
"""The largest flow-control window (RFC 9113, 6.9.1)."""

SWEEP_INTERVAL = 1.0
"""Seconds between two passes of a shell over its connections: flood counters, time-outs, keepalive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one connection and its calls. Sizes are bytes, times are seconds; 0 turns a time-out off."""

    max_concurrent_streams: int = 1_000
    """Streams that the peer may hold open; one more is refused with REFUSED_STREAM."""
    stream_window: int = DEFAULT_WINDOW
    """Bytes of a stream that may wait unconsumed; 65,535 or more."""
    connection_window: int = 1_048_576
    """Receive window of the connection, opened again on receipt; 65,535 or more."""
    max_header_list: int = 16_384
    """Size of a decoded header list (names, values, 32 bytes a field); a larger one ends the call."""
    max_header_list_hard: int = 65_536
    """Size of a decoded header list above which decoding stops and the connection ends."""
    max_header_block: int = 32_768
    """Size of an encoded header block that needs CONTINUATION frames, all its frames together."""
    max_continuations: int = 16
    """CONTINUATION frames of one header block."""
    unproductive_frames: int = 1_000
    """Unproductive frames in one sweep interval: PING, SETTINGS, PRIORITY, GOAWAY, WINDOW_UPDATE, unknown and
    empty ones. Useful frames raise this limit."""
    unproductive_per_useful: int = 4
    """Unproductive frames that each useful frame (HEADERS received, DATA either way) allows in addition."""
    early_resets: int = 2_000
    """Streams in one sweep interval that end for a fault of the peer, or that the peer resets before we sent
    data on them. At least `max_concurrent_streams` are allowed in any case."""
    paused_control_bytes: int = 65_536
    """Bytes of acknowledgements and resets that may wait while the peer does not read."""
    output_high: int = 262_144
    """Framed bytes that wait for one write; further data stays with its stream."""
    stream_send_high: int = 65_536
    """Unsent bytes of a stream from which `send` returns False."""
    stream_send_low: int = 16_384
    """Unsent bytes of a stream at which `writable` is called again."""
    stream_send_limit: int = 1_048_576
    """Unsent bytes of a stream above which one more `send` ends the stream."""
    connection_send_limit: int = 33_554_432
    """Unsent bytes of all streams of a connection above which one more `send` ends its stream."""
    connection_receive_limit: int = 67_108_864
    """Bytes of incomplete and unread messages on all streams of a connection. Above it messages become whole
    one after the other; at four times this a call ends."""
    max_receive_message: int = 4_194_304
    """A received message, as sent and after decompression."""
    max_send_message: int = 4_194_304
    """A message that we send, before compression."""
    handshake_timeout: float = 10.0
    """From accept until the peer has sent and acknowledged SETTINGS. TLS before it has as long again."""
    frame_timeout: float = 30.0
    """For the rest of a frame or header block that has begun."""
    first_message_timeout: float = 60.0
    """For the first message on a stream that was opened to us."""
    idle_timeout: float = 900.0
    """A connection without streams is closed with GOAWAY after this."""
    keepalive_interval: float = 60.0
    """Silence of the peer after which we send PING; a client sends it only while it has calls."""
    keepalive_timeout: float = 20.0
    """Silence after that PING at which the connection is aborted."""
    max_connections: int = 1_000
    """Connections that a server holds, those in their TLS handshake included. One more ends the oldest
    handshake, else the oldest connection without streams; without either, the new one is closed at once."""
    max_handshakes: int = 256
    """TLS handshakes under way; one more ends the oldest."""
    max_waiting_calls: int = 10_000
    """Calls of a channel that wait for a connection or a free stream."""

    def __post_init__(self) -> None:
        """Refuse values that the protocol cannot express.

        Raises:
            ValueError: A window is below 65,535 or above 2**31-1, or a limit is negative.
        """
        for name in ("stream_window", "connection_window"):
            if not DEFAULT_WINDOW <= getattr(self, name) <= MAX_WINDOW:
                msg = f"{name} must lie between {DEFAULT_WINDOW} and {MAX_WINDOW}"
                raise ValueError(msg)
        for name in self.__dataclass_fields__:
            if getattr(self, name) < 0:
                msg = f"{name} must not be negative"
                raise ValueError(msg)


DEFAULT_LIMITS = Limits()

CHANNEL_LIMITS = Limits(keepalive_interval=330.0)
"""Defaults of a channel. grpc's servers close connections that send PING more often than every 300 s."""
