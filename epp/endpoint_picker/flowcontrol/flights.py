"""A dispatched request, as the queue counts it until its end. Pure."""

from typing import Final

from endpoint_picker.flowcontrol.band import Band
from endpoint_picker.flowcontrol.queued import Flow

#: Tokens of a prompt that one token of an answer counts as, where bands are compared.
ANSWER_WEIGHT: Final = 2.0


class Flight:
    """What was counted for one dispatched request."""

    __slots__ = ("answer_tokens", "answered", "band", "flow", "model", "prompt_tokens")

    def __init__(self, band: Band, flow: Flow, model: str, prompt_tokens: int, answer_tokens: float) -> None:
        self.band = band
        self.flow = flow
        self.model = model
        self.prompt_tokens = prompt_tokens
        """Estimated."""
        self.answer_tokens = answer_tokens
        """Expected."""
        self.answered = False
        """The first byte of its answer has come."""
