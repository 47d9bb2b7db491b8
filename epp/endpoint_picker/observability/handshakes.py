"""Failed handshakes of the ext-proc port: counted by kind, logged at a bounded rate with what to do."""

import logging
from collections.abc import Callable
from math import inf
from typing import Final

from endpoint_picker.observability.metrics import PickerMetrics
from lean_grpc import FailedHandshake, HandshakeFailure

#: Seconds for which a failure counts as recent.
RECENT_S: Final = 300.0
#: Seconds between two log lines of one kind; failures in between are counted.
LOG_INTERVAL_S: Final = 60.0

_SEE: Final = "see docs/install.md, Gateways"
#: What to do, by kind. Other kinds are logged at debug, as probes and port scans cause them all the time.
_ADVICE: Final = {
    HandshakeFailure.CLEARTEXT_HTTP2: (
        "a gateway speaks HTTP/2 without TLS to this port, which has TLS: have it use TLS "
        f"(Istio: a DestinationRule), {_SEE}"
    ),
    HandshakeFailure.CLEARTEXT_HTTP1: "a client speaks HTTP/1 without TLS to this port, which is for gRPC",
    HandshakeFailure.NO_HTTP2: (
        f"a gateway uses TLS without offering HTTP/2 (ALPN h2): have it speak HTTP/2, {_SEE}"
    ),
    HandshakeFailure.UNTRUSTED: (
        "a gateway does not accept the certificate: have it skip verification, or mount one that it trusts, "
        f"{_SEE}"
    ),
    HandshakeFailure.CROWDED_OUT: "more connections are in their handshake than may be: who opens them?",
    HandshakeFailure.TIMEOUT: "a peer did not finish its handshake in time",
    HandshakeFailure.OTHER: "a peer could not agree on TLS",
}

_log = logging.getLogger(__name__)


class HandshakeFailures:
    """Counts failed handshakes and remembers when each kind was seen last."""

    __slots__ = ("_clock", "_log_again", "_seen_at", "_series", "_unlogged")

    def __init__(self, metrics: PickerMetrics, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._series = {kind: metrics.failed_handshakes.labels(kind.value) for kind in HandshakeFailure}
        self._seen_at = dict.fromkeys(HandshakeFailure, -inf)
        self._log_again = dict.fromkeys(HandshakeFailure, -inf)
        self._unlogged = dict.fromkeys(HandshakeFailure, 0)

    def note(self, failed: FailedHandshake) -> None:
        """Count one, and log it unless its kind was logged a short time ago."""
        kind, now = failed.kind, self._clock()
        self._series[kind].value += 1
        self._seen_at[kind] = now
        advice = _ADVICE.get(kind)
        if advice is None:
            _log.debug("handshake failed", extra={"kind": kind.value, "peer": failed.peer})
            return
        if now < self._log_again[kind]:
            self._unlogged[kind] += 1
            return
        facts = {"kind": kind.value, "peer": failed.peer, "detail": failed.detail}
        _log.warning("handshake failed: %s", advice, extra={**facts, "untold": self._unlogged[kind]})
        self._log_again[kind] = now + LOG_INTERVAL_S
        self._unlogged[kind] = 0

    def recent(self) -> tuple[str, ...]:
        """Return the kinds that have been seen within `RECENT_S`, sorted."""
        since = self._clock() - RECENT_S
        return tuple(sorted(kind.value for kind, seen in self._seen_at.items() if seen >= since))
