"""The JSON of the other project's predictor: its fields in this contract's units. Pure; JSON is decoded
already.

Field by field: `kv_cache_percentage` is a fraction; `num_request_running` is the picker's own count of
requests in flight, those that wait included; `pod_type` is a role. `num_tokens_generated` and the encoder's
sizes have no feature here and are checked only.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from latency_contract.matrix import Matrix, build
from latency_contract.schema import Role, role_of

#: Name, highest value, whether it must be a whole number, and the default; None: required.
_FIELDS: Final[Mapping[str, tuple[float, bool, float | None]]] = {
    "kv_cache_percentage": (1.0, False, None),
    "input_token_length": (1e7, True, None),
    "num_request_waiting": (1e6, True, None),
    "num_request_running": (1e6, True, None),
    "prefix_cache_score": (1.0, False, None),
    "prefill_tokens_in_flight": (1e9, True, 0.0),
    "decode_tokens_in_flight": (1e9, True, 0.0),
    "encoder_matched_size": (1e9, True, 0.0),
    "encoder_input_size": (1e9, True, 0.0),
}
#: Only in samples.
_TRAINING: Final[Mapping[str, tuple[float, bool, float | None]]] = {
    "actual_ttft_ms": (21_600_000.0, False, None),
    "actual_tpot_ms": (21_600_000.0, False, None),
    "num_tokens_generated": (1e7, True, None),
}


class EntryError(ValueError):
    """One entry that cannot be used; the message names its field."""


def checked(entry: object, *, training: bool = False) -> dict[str, float]:
    """Return the numbers of an entry, and `role`. Raises EntryError."""
    if not isinstance(entry, dict):
        raise EntryError("an entry must be an object")
    found: dict[str, float] = {}
    for name, (highest, whole, default) in (*_FIELDS.items(), *(_TRAINING.items() if training else ())):
        value = entry.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            msg = f"{name}: {'missing' if value is None else 'must be a number'}"
            raise EntryError(msg)
        if not (math.isfinite(value) and 0 <= value <= highest) or (whole and value != int(value)):
            msg = f"{name}: {value!r} must be {'a whole number ' if whole else ''}from 0 to {highest:g}"
            raise EntryError(msg)
        found[name] = float(value)
    pod_type = entry.get("pod_type")
    if pod_type is not None and not isinstance(pod_type, str):
        raise EntryError("pod_type: must be a string")
    found["role"] = float(role_of(pod_type))
    return found


def matrix_of(entries: Sequence[Mapping[str, float]]) -> Matrix:
    """Return the matrix of entries that `checked` returned."""

    def column(name: str) -> Any:
        return np.array([each[name] for each in entries], dtype=np.float32)

    waiting, inflight = column("num_request_waiting"), column("num_request_running")
    return build(
        {
            "input_tokens": column("input_token_length"),
            "prefix_hit": column("prefix_cache_score"),
            "waiting_requests": waiting,
            "running_requests": np.maximum(inflight - waiting, 0),
            "kv_usage": column("kv_cache_percentage"),
            "inflight_requests": inflight,
            "unseen_requests": 0,
            "prefill_tokens_in_flight": column("prefill_tokens_in_flight"),
            "decode_tokens_in_flight": column("decode_tokens_in_flight"),
            "role": column("role") if len(entries) else float(Role.BOTH),
        },
        len(entries),
    )
