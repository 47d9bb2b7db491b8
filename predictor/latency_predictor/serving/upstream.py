"""The other project's JSON of prediction, as its Go client sends and expects it; decoded already. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from latency_contract.prediction_wire import Prediction, PredictionRequest
from latency_contract.schema import Target
from latency_contract.upstream_json import EntryError, checked, matrix_of

#: Most rows of a call.
MAX_REQUESTS: Final = 10_000
MODEL_TYPE: Final = "xgboost"
OBJECTIVE: Final = "quantile"


class BodyError(ValueError):
    """The body cannot be used; the message is for the client (422)."""


def question(entries: Sequence[object], quantile: float) -> tuple[PredictionRequest, list[tuple[int, str]]]:
    """Return what the entries ask, and (index, why) of those that cannot be used.

    TTFT and TPOT are asked for at the median and at `quantile`.
    """
    good, bad = [], []
    for index, entry in enumerate(entries):
        try:
            good.append(checked(entry))
        except EntryError as error:
            bad.append((index, str(error)))
    return PredictionRequest((Target.TTFT, Target.TPOT), (0.5, quantile), matrix_of(good)), bad


def bulk_entries(body: object) -> Sequence[object]:
    """Return the entries of a bulk body. Raises BodyError."""
    entries = body.get("requests") if isinstance(body, dict) else None
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_REQUESTS:
        msg = f"requests: a list of 1 to {MAX_REQUESTS} entries"
        raise BodyError(msg)
    return entries


def answers(found: Prediction, quantile: float, now: float, loaded_at: float) -> list[dict[str, Any]]:
    """Return one answer a row: milliseconds at `quantile`, at least 0; what there is no model of is 0."""
    milliseconds = np.maximum(np.nan_to_num(found.seconds[:, -1].astype(np.float64)), 0.0) * 1000.0
    shared = {
        "predicted_at": _time(now),
        "model_type": MODEL_TYPE,
        "objective_type": OBJECTIVE,
        "quantile": quantile,
        "last_model_load": _time(loaded_at) if loaded_at else None,
    }
    return [
        {"ttft_ms": ttft, "tpot_ms": tpot, **shared}
        for ttft, tpot in zip(milliseconds[0].tolist(), milliseconds[1].tolist(), strict=True)
    ]


def bulk(predictions: Sequence[Any], failed: int, took_s: float) -> dict[str, Any]:
    """Return the answer to a bulk call."""
    return {
        "predictions": list(predictions),
        "total_requests": len(predictions),
        "successful_predictions": len(predictions) - failed,
        "failed_predictions": failed,
        "processing_time_ms": round(took_s * 1000.0, 3),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
