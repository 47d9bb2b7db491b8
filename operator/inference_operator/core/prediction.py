"""The conditions PredictorReady and PredictionSupported, and the status of prediction. Pure."""

from math import ceil
from typing import Final

from inference_api.latency_predictor import MOST_SERVERS, LatencyPredictorStatus
from inference_api.prediction_report import GainReport, Gains, PredictionReport, TargetError
from inference_operator.core import reasons
from inference_operator.core.desired import predictor
from inference_operator.core.desired.config_maps import predicts
from inference_operator.core.observation import Observation
from inference_operator.core.rollout import Judgement

#: CPU seconds that a prediction server takes for a call, and for each row of it: two targets with two
#: quantiles each, with the wire (docs/benchmarks.md, predictor).
CALL_S: Final = 280e-6
ROW_S: Final = 5.3e-6
#: Part of a core up to which a server's answers come within the budget.
BUSY: Final = 0.6
_DEGRADED: Final = "degraded"
_WARMING: Final = "warming"


def judge_predictor(seen: Observation) -> Judgement:
    """Return whether requests are routed by prediction, from the picker's answer."""
    if not predicts(seen.spec):
        return Judgement("False", reasons.PREDICTION_NOT_CONFIGURED.say())
    said = seen.picker_answer.prediction
    if said is None:
        return Judgement("Unknown", reasons.PREDICTION_UNKNOWN.say())
    if not said.servers_answering:
        return Judgement("False", reasons.PREDICTOR_UNREACHABLE.say(servers=said.servers))
    if said.state == _WARMING:
        least = seen.spec.latency_predictor.retrain.least_samples
        return Judgement("False", reasons.WARMING_UP.say(sent=said.samples.sent, least=least))
    if said.state == _DEGRADED:
        return Judgement("False", reasons.DEGRADED.say(error=errors_of(said.errors) or "not known yet"))
    if said.is_out_for_no_gain:
        return Judgement("False", reasons.NO_GAIN.say(gain=gain_of(said.gain) or "significantly negative"))
    about = [f"version {said.version}", f"error {errors_of(said.errors) or 'not measured yet'}"]
    about.append(f"gain {gain_of(said.gain) or 'not measured yet'}")
    return Judgement("True", reasons.TRAINED.say(about="; ".join(about)))


def judge_support(seen: Observation) -> Judgement:
    """Return whether the pool is one that can be predicted, and the prediction servers suffice."""
    said = seen.picker_answer.prediction
    if said is None:
        return Judgement("Unknown", reasons.PREDICTION_UNKNOWN.say())
    if said.engines_without_class:
        return Judgement("False", reasons.MIXED_ENGINES.say(kinds=", ".join(said.engines_without_class)))
    if said.mixes_streaming:
        return Judgement("False", reasons.MIXED_RESPONSES.say())
    if (needed := servers_for(said)) > said.servers:
        return Judgement(
            "False",
            reasons.TOO_FEW_SERVERS.say(
                servers=said.servers,
                requests=round(said.rate.requests_per_second),
                rows=round(said.rate.rows_per_second),
                needed=min(needed, MOST_SERVERS),
            ),
        )
    return Judgement("True", reasons.PREDICTION_SUPPORTED.say())


def servers_for(said: PredictionReport) -> int:
    """Return how many prediction servers the measured rate takes; 0 for none."""
    busy = said.rate.calls_per_second * CALL_S + said.rate.rows_per_second * ROW_S
    return ceil(busy / BUSY)


def status_of(seen: Observation) -> LatencyPredictorStatus | None:
    """Return the status; None while it is not asked for, or no picker has reported it."""
    said = seen.picker_answer.prediction
    if said is None or not predictor.is_on(seen):
        return None
    return LatencyPredictorStatus(
        state=said.state, version=said.version, error=errors_of(said.errors), gain=gain_of(said.gain)
    )


def errors_of(errors: dict[str, TargetError]) -> str:
    """Return, say, "ttft 12%, tpot 8%"."""
    judged = [(name, each) for name, each in sorted(errors.items()) if each.judged]
    return ", ".join(f"{name} {each.median_absolute:.0%}" for name, each in judged)


def gain_of(gains: Gains) -> str:
    """Return, say, "latency +21% (+17% to +25%)", of what has enough requests for a verdict."""
    pairs = (("goodput", gains.goodput), ("latency", gains.latency))
    return ", ".join(_spelled(name, gain) for name, gain in pairs if gain is not None and gain.enough)


def _spelled(name: str, gain: GainReport) -> str:
    return f"{name} {gain.mean:+.0%} ({gain.low:+.0%} to {gain.high:+.0%})"
