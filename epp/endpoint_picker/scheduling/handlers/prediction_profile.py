"""prediction-profile-handler: one profile for predicted requests, the heuristic one for all others."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.latency.desk import Desk
from endpoint_picker.latency.objectives import marks_of
from endpoint_picker.latency.prediction import Prediction, prediction_of, to_come, unpredicted
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.hold import Hold
from endpoint_picker.scheduling.plugin import PluginParams, Pool, RandomSource
from endpoint_picker.scheduling.producers.predicted_latency import ticket_of
from endpoint_picker.scheduling.profile import Profile
from endpoint_picker.scheduling.profile_handler import ProfileHandler


class PredictionProfileParams(PluginParams):
    """Parameters of prediction-profile-handler."""

    predicted_profile: str = Field(default="predicted", min_length=1)
    """Profile of requests whose latency is predicted."""
    heuristic_profile: str = Field(default="default", min_length=1)
    """Profile of all others: those that do not ask, those held out, and those without an answer in time."""


class PredictionProfileHandler(ProfileHandler):
    """Runs the predicted profile for a request that gets a prediction, else the heuristic profile.

    So a request without a prediction, and one that is held out to measure the gain, is picked just as by a
    configuration without prediction.
    """

    __slots__ = ("_desk", "params")
    type_name = "prediction-profile-handler"
    params_type = PredictionProfileParams
    most_profiles: ClassVar[int] = 2

    def __init__(self, params: PredictionProfileParams) -> None:
        self.params = params
        self._desk: Desk

    @override
    def fault_of(self, profiles: Sequence[str]) -> str:
        """Demand both profiles."""
        for key, name in (
            ("predictedProfile", self.params.predicted_profile),
            ("heuristicProfile", self.params.heuristic_profile),
        ):
            if name not in profiles:
                return f'{key} is "{name}", which is no profile; there are: {", ".join(profiles)}'
        return super().fault_of(profiles)

    @override
    def attach(self, pool: Pool) -> None:
        """Take the pool's desk."""
        self._desk = pool.desk

    @override
    def schedule(
        self,
        request: InferenceRequest,
        candidates: Candidates,
        table: EndpointTable,
        rng: RandomSource,
        profiles: Sequence[Profile],
    ) -> Sequence[Candidates] | Hold:
        """Run one of the two profiles."""
        predicted, heuristic = profiles[0], profiles[-1]
        if predicted.name != self.params.predicted_profile:
            predicted, heuristic = heuristic, predicted
        rows = candidates.rows
        candidates.prediction = self._prediction(request, candidates, predicted.name)
        if candidates.prediction is None or not candidates.prediction.reason:
            hold = predicted.run(request, candidates, table, rng)
            if hold is not None:
                return hold
            found: Prediction | None = candidates.prediction
            if found is None or not found.reason:
                return (candidates,) if candidates.order.size else ()
            candidates = Candidates(rows, candidates.held)
            candidates.prediction = found
        hold = heuristic.run(request, candidates, table, rng)
        if hold is not None:
            return hold
        return (candidates,) if candidates.order.size else ()

    def _prediction(
        self, request: InferenceRequest, candidates: Candidates, profile: str
    ) -> Prediction | None:
        """Return why there is no prediction, or what stands for one that is there or will be asked for."""
        before = ticket_of(candidates.held)
        ticket = None if before is None else before.of_profile(profile)
        if ticket is not None:
            # The producer makes the prediction of an answer.
            return prediction_of(ticket, streaming=False, buffer=1.0) if ticket.reason else None
        marks = marks_of(request.headers)
        policy, reason = self._desk.route(request, marks, self._desk.clock())
        return unpredicted(reason, marks) if reason else to_come(policy, marks)
