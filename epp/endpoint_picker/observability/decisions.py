"""The newest decisions with their reasons, recorded only while `/debug/decisions` is read.

A GET of `/debug/decisions` starts the recording, or prolongs it, for `WINDOW_S`. Pure: `HttpServer` sets
`recording`, and calls `stop` when the window is over.
"""

from collections import deque
from typing import Any, Final

from endpoint_picker.decision import Decision
from endpoint_picker.request import InferenceRequest

#: Seconds of recording after a GET of the page.
WINDOW_S: Final = 30.0
#: Decisions kept; the oldest is dropped first.
KEPT: Final = 64
#: Longest request id and model name kept, in characters: clients choose both.
NAME_LIMIT: Final = 128


class Decisions:
    """A ring of the newest decisions."""

    __slots__ = ("_ring", "recording")

    def __init__(self) -> None:
        self._ring: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.recording = False

    def note(self, request: InferenceRequest, decision: Decision, candidates: int) -> None:
        """Keep one decision."""
        self._ring.append(
            {
                "requestId": request.request_id[:NAME_LIMIT],
                "model": request.model[:NAME_LIMIT],
                "priority": request.priority,
                "destination": decision.destination,
                "candidates": candidates,
                "prefixHit": round(decision.prefix_hit, 3),
                "scores": {name: round(score, 3) for name, score in decision.scores},
            }
        )

    def page(self) -> dict[str, Any]:
        """Return what is kept, newest first."""
        return {"windowSeconds": WINDOW_S, "decisions": list(reversed(self._ring))}

    def stop(self) -> None:
        """Stop recording and drop the decisions kept."""
        self.recording = False
        self._ring.clear()
