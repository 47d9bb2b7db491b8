"""A picker's report on prediction: a part of its answer to the operator. Pure.

The fields are those of the section `latencyPrediction` of the picker's state page that conditions and status
need.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

_Text = Annotated[str, Field(max_length=256)]
_Count = Annotated[int, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(
        extra="ignore", frozen=True, alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False
    )


class TargetError(_Part):
    """Errors of the newest predictions of one target."""

    judged: _Count = 0
    """How many."""
    median_absolute: float = 0.0
    """Median of the absolute relative errors."""
    within_bound: float = 0.0
    """Part of the requests that took no longer than the upper bound."""


class GainReport(_Part):
    """By how much prediction does better than the heuristic, with its 95 % interval."""

    mean: float
    low: float
    high: float
    predicted: _Count = 0
    """Requests of each arm."""
    heuristic: _Count = 0
    enough: bool = False
    """There are enough requests for a verdict."""


class Gains(_Part):
    """None where an arm has no requests."""

    goodput: GainReport | None = None
    """Difference of the parts of requests that met their objectives."""
    latency: GainReport | None = None
    """1 - predicted / heuristic, of the geometric means of the latency of requests without objectives."""


class RateReport(_Part):
    """What is asked of the prediction servers, each a second."""

    requests_per_second: float = 0.0
    rows_per_second: float = 0.0
    calls_per_second: float = 0.0


class SampleCounts(_Part):
    """Samples by what became of them."""

    added: _Count = 0
    dropped: _Count = 0
    lost: _Count = 0
    sent: _Count = 0


class PredictionReport(_Part):
    """State of prediction in one picker."""

    enabled: bool = False
    """The configuration in use asks for predictions."""
    mode: _Text = ""
    servers: _Count = 0
    servers_answering: _Count = 0
    state: _Text = ""
    """Of the model, as the newest answer of a server says: warming, seeded, trained or degraded."""
    version: _Text = ""
    routes: bool = False
    """A request that asks for it would be predicted."""
    reason: _Text = ""
    """Why none would be."""
    rate: RateReport = RateReport()
    errors: Annotated[dict[str, TargetError], Field(max_length=8)] = Field(default_factory=dict)
    """By target."""
    is_out_for_no_gain: bool = False
    gain: Gains = Gains()
    samples: SampleCounts = SampleCounts()
    mixes_streaming: bool = False
    """The pool serves both responses that stream and others."""
    engines_without_class: Annotated[tuple[_Text, ...], Field(max_length=16)] = ()
    """Kinds of model servers that no class label tells apart, where the pool has several."""
