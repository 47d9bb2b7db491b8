"""The prediction method over lean_grpc, and its counters."""

import time
from typing import Final

from latency_contract.errors import ContractError
from latency_contract.prediction_wire import (
    PREDICT_PATH,
    Prediction,
    PredictionRequest,
    decode_request,
    encode_answer,
)
from latency_contract.states import State
from latency_predictor.serving.model import ServingModel, UnknownQuantileError, warming
from lean_grpc import CallError, Server, ServerCall, StatusCode

#: Bounds of the histogram of evaluation times, in seconds.
BOUNDS: Final = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)


class PredictionService:
    """Answers from the model in use. All methods but the constructor run in the event loop."""

    def __init__(self) -> None:
        self.model: ServingModel | None = None
        self.loaded_at = 0.0
        """Seconds since the epoch; 0.0 without a model."""
        self.calls = 0
        self.rows = 0
        self.refused = 0
        self.seconds = 0.0
        self.counts = [0] * (len(BOUNDS) + 1)

    @property
    def state(self) -> State:
        """Return the state that answers have."""
        return State.WARMING if self.model is None else self.model.manifest.state

    def install(self, server: Server) -> None:
        """Serve the method."""
        server.add_unary(PREDICT_PATH, self._answer)

    def use(self, model: ServingModel) -> None:
        """Answer from this model from the next call on."""
        self.model = model
        self.loaded_at = time.time()

    def predict(self, asked: PredictionRequest) -> Prediction:
        """Return the answer, and count it. Raises UnknownQuantileError."""
        begun = time.perf_counter()
        model = self.model
        found = warming(asked) if model is None else model.predict(asked)
        took = time.perf_counter() - begun
        self.calls += 1
        self.rows += len(asked.matrix)
        self.seconds += took
        for at, bound in enumerate(BOUNDS):
            if took <= bound:
                self.counts[at] += 1
                break
        else:
            self.counts[-1] += 1
        return found

    def _answer(self, payload: bytes, call: ServerCall) -> bytes:
        try:
            return encode_answer(self.predict(decode_request(payload)))
        except (ContractError, UnknownQuantileError) as error:
            self.refused += 1
            raise CallError(StatusCode.INVALID_ARGUMENT, str(error)) from error
