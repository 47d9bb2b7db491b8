"""Prediction servers of a simulated pool: one runs a bundle, one knows the engines' next tokens.

Both answer within the call, so that no decision waits; what waiting costs is `bench/predictor.py`'s to say.
"""

from collections.abc import Callable

import numpy as np

from endpoint_picker.latency.link import Answered
from endpoint_picker.routing import PoolRouter
from latency_contract.prediction_wire import Prediction, decode_request, encode_answer
from latency_contract.sample_wire import SampleBatch
from latency_contract.schema import Target
from latency_contract.states import State
from latency_predictor.serving.model import ServingModel
from pool_simulation.oracles import WatchedServers
from pool_simulation.policy import Surroundings
from pool_simulation.prompts import block_hashes
from pool_simulation.workload import SimulatedRequest


class OraclePredictor:
    """Answers what each engine is going to do with the request, if nothing arrives after it."""

    servers = 1
    answers_at_once = True

    def __init__(self, pool: Surroundings) -> None:
        self._pool = pool
        self._watched = WatchedServers(pool)
        self._request: SimulatedRequest | None = None
        self._router: PoolRouter | None = None

    def asking(self, request: SimulatedRequest, router: PoolRouter) -> None:
        """Note the request."""
        self._request, self._router = request, router

    def answering(self, request: SimulatedRequest, server: int) -> None:
        """Note the first token."""
        self._watched.answering(request, server)

    def ended(self, request: SimulatedRequest) -> None:
        """Forget the request."""
        self._watched.ended(request)

    def learn(self, batch: SampleBatch) -> None:
        """Learn nothing."""

    def picked(self, request: SimulatedRequest, server: int) -> None:
        """Note where the request went."""
        self._watched.picked(request, server)

    def send(self, server: int, message: bytes, timeout_s: float, answered: Answered) -> None:
        """Answer for all ready endpoints, in the order of the table; NaN for other questions."""
        asked = decode_request(message)
        request, router = self._request, self._router
        rows = len(asked.matrix)
        seconds = np.full((len(asked.targets), len(asked.quantiles), rows), np.nan, dtype=np.float32)
        if request is not None and router is not None and rows == router.table.ready_rows.size:
            for at, row in enumerate(router.table.ready_rows.tolist()):
                number = self._watched.number_of(router.table.hostports[row])
                hashes = block_hashes(request, self._pool.servers[number].params.block_size)
                prospect = self._watched.prospect(number, request, hashes)
                ttft, e2e = prospect.ttft_s, prospect.e2e_s
                values = {
                    Target.TTFT: ttft,
                    Target.TPOT: (e2e - ttft) / max(1, request.output_tokens - 1),
                    Target.E2E: e2e,
                }
                for target_at, target in enumerate(asked.targets):
                    seconds[target_at, :, at] = values[target]
        answered(
            encode_answer(
                Prediction(State.TRAINED, "oracle", asked.targets, np.zeros(rows, dtype=np.uint8), seconds)
            )
        )


class BundlePredictor:
    """Answers as a prediction server with this bundle does."""

    servers = 1
    answers_at_once = True

    def __init__(self, model: ServingModel, learn: Callable[[SampleBatch], None] | None = None) -> None:
        """`learn` gets each batch of samples."""
        self.model = model
        self._learn = learn

    def asking(self, request: SimulatedRequest, router: PoolRouter) -> None:
        """Pass over what a prediction server is not told."""

    def picked(self, request: SimulatedRequest, server: int) -> None:
        """Pass over it."""

    def answering(self, request: SimulatedRequest, server: int) -> None:
        """Pass over it."""

    def ended(self, request: SimulatedRequest) -> None:
        """Pass over it."""

    def learn(self, batch: SampleBatch) -> None:
        """Hand the samples on."""
        if self._learn is not None:
            self._learn(batch)

    def send(self, server: int, message: bytes, timeout_s: float, answered: Answered) -> None:
        """Answer from the bundle."""
        answered(encode_answer(self.model.predict(decode_request(message))))
