"""A dispatched request, as the queue counts it until its end. Pure."""

from typing import Final

from endpoint_picker.decision import Resume
from endpoint_picker.flowcontrol.band import Band
from endpoint_picker.flowcontrol.queued import Flow
from endpoint_picker.request import InferenceRequest

#: Tokens of a prompt that one token of an answer counts as, where bands are compared.
ANSWER_WEIGHT: Final = 2.0


class Victim:
    """What is kept of a request in order to end it."""

    __slots__ = ("request", "resume")

    def __init__(self, request: InferenceRequest, resume: Resume) -> None:
        self.request = InferenceRequest(
            request_id=request.request_id, model=request.model, objective=request.objective
        )
        """Its names, without its body."""
        self.request.priority = request.priority
        self.resume = resume
        """Takes the refusal in place of the server's answer."""


class Flight:
    """What was counted for one dispatched request."""

    __slots__ = (
        "answer_tokens",
        "answered",
        "band",
        "flow",
        "is_promised",
        "model",
        "prompt_tokens",
        "victim",
    )

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
        self.is_promised = False
        """It went before higher bands, by `minShare` or `maxWait`."""
        self.victim: Victim | None = None
        """What it is ended with; None when it may not be."""
