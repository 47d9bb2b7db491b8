"""EndpointPicker.spec.latencyPredictor, and what the status says of prediction."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import ConfigDict, Field

from inference_api.container import Image, Quantity, ResourceRequirements
from inference_api.markers import Schema, rules
from inference_api.meta import ApiType

#: Most prediction servers beside one picker.
MOST_SERVERS: Final = 16

_DURATION: Final = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
Duration = Annotated[
    str,
    Schema(
        minLength=2,
        maxLength=32,
        pattern=_DURATION,
        **{
            "x-kubernetes-validations": rules(
                ("duration(self) >= duration('1s')", "must be at least 1s, as in 90s, 30m or 1h30m")
            )
        },
    ),
]
Servers = Annotated[int, Schema(format="int32", minimum=1, maximum=MOST_SERVERS)]
Number = Annotated[float, Schema(type="number")]


class PredictionMode(StrEnum):
    """Which requests are predicted."""

    OPT_IN = "OptIn"
    ALL = "All"


class RetrainSpec(ApiType):
    """When the trainer learns anew."""

    least_samples: Annotated[int, Schema(format="int32", minimum=10, maximum=1_000_000)] = 100
    """Samples of a target before its first model; 100 when absent."""
    longest_pause: Duration = "30m"
    """Longest time between two trainings, such as 10m; 30m when absent. New samples and drift trigger a
    training before."""
    max_age: Duration = "168h"
    """Age from which a sample is forgotten; 168h (a week) when absent."""


class PredictorResources(ApiType):
    """Resources of the sidecars."""

    trainer: ResourceRequirements | None = None
    """Of the trainer; requests of 250m CPU and 512Mi, and a limit of 2Gi, when absent."""
    prediction_server: ResourceRequirements | None = None
    """Of each prediction server; requests of 500m CPU and 256Mi, and a limit of 1Gi, when absent."""


class PredictorStorage(ApiType):
    """Where samples and models lie."""

    size_limit: Quantity = "2Gi"
    """Limit of the emptyDir that the sidecars share; 2Gi when absent. A pod that exceeds it is evicted."""
    claim_name: (
        Annotated[str, Schema(minLength=1, maxLength=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")] | None
    ) = None
    """A PersistentVolumeClaim of the namespace, on which the trainer keeps an export of what it has learned,
    for the case that no older picker runs. Only ReadWriteMany serves: while a rollout replaces the picker,
    two pods mount it. None when absent: samples and models then pass from pod to pod alone."""


_MEASURED: Final = "!has(self.holdout) || self.holdout > 0 || self.?mode.orValue('OptIn') != 'All'"
_MEASURED_MESSAGE: Final = (
    "mode All needs a holdout above 0: without held-out requests nothing shows whether prediction helps"
)


class LatencyPredictorSpec(ApiType):
    """A trainer and prediction servers beside the picker, and routing by what they predict."""

    model_config = ConfigDict(
        json_schema_extra={"x-kubernetes-validations": rules((_MEASURED, _MEASURED_MESSAGE))}
    )

    enabled: bool = False
    """True runs the sidecars and routes by prediction; false (the default) leaves nothing of them."""
    prediction_server_count: Servers = 1
    """Prediction servers; 1 when absent. docs/prediction-operations.md says how many a rate needs."""
    streaming_mode: bool = False
    """True predicts TTFT and TPOT, for pools whose responses stream; false (the default) predicts the time to
    the end."""
    mode: PredictionMode = PredictionMode.OPT_IN
    """OptIn (the default) predicts for requests with the header x-prediction-based-scheduling: true; All for
    each."""
    quantile: Annotated[
        Number, Schema(exclusiveMinimum=True, exclusiveMaximum=True, minimum=0.5, maximum=1)
    ] = 0.9
    """Part of the requests that the upper bound covers, by which objectives are judged; 0.9 when absent."""
    holdout: Annotated[int, Schema(format="int32", minimum=0, maximum=50)] = 2
    """Percent of the requests that are picked without prediction, to measure its gain; 2 when absent."""
    retrain: RetrainSpec = Field(default_factory=RetrainSpec)
    """When the trainer learns anew."""
    image: Image | None = None
    """Image of the sidecars; the operator's --predictor-image when absent."""
    resources: PredictorResources = Field(default_factory=PredictorResources)
    """Resources of the sidecars."""
    storage: PredictorStorage = Field(default_factory=PredictorStorage)
    """Where samples and models lie."""


class LatencyPredictorStatus(ApiType):
    """Prediction as the picker sees it; figures change at most once in a resync."""

    state: str
    """Of the newest model: warming, seeded, trained or degraded."""
    version: str = ""
    """Name of the bundle of models in use."""
    error: str = ""
    """Median absolute percentage error of recent requests by target, as in "ttft 12%, tpot 8%"."""
    gain: str = ""
    """By how much prediction does better than the heuristic, with the 95 % interval, as in
    "latency +21% (+17% to +25%)"; empty before enough requests were held out."""
