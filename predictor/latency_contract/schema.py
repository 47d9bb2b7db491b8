"""The features of a prediction: names, units, ranges, order, and a hash of all of it. Pure.

A row describes one request on one candidate endpoint, as the picker saw both when it decided. `FEATURES` is
the order of the matrix' columns. The first `INPUTS` of them are written by the picker; the others are derived
from these by `matrix`, so that no two programs compute them differently. NaN means unknown.
"""

import hashlib
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class Target(IntEnum):
    """What is predicted, each in seconds; the values are rows of the wire's arrays."""

    TTFT = 0
    """From sending the request to an endpoint until the first byte of its answer."""
    TPOT = 1
    """Mean time between output tokens after the first."""
    E2E = 2
    """From sending the request to an endpoint until the last byte of its answer."""


class AdapterState(IntEnum):
    """The LoRA adapter that a request needs, on one endpoint; codes of later versions count as `UNKNOWN`."""

    UNKNOWN = 0
    NONE = 1
    """The request needs no adapter."""
    RUNNING = 2
    RESIDENT = 3
    """In a slot, without a running request."""
    LOADABLE = 4
    """Not loaded; a slot is empty or idle."""
    FULL = 5
    """Not loaded, and every slot runs another adapter."""


class Role(IntEnum):
    """What an endpoint does for the request. `OTHER` is for roles that are not known."""

    OTHER = 0
    BOTH = 1
    PREFILL = 2
    DECODE = 3


@dataclass(frozen=True, slots=True)
class Feature:
    """One column of the matrix."""

    name: str
    unit: str
    low: float
    high: float
    meaning: str


#: Largest value of `class_code`; every code is exact in float32.
MAX_CLASS_CODE: Final = 65_535

_MANY: Final = 1e6
_TOKENS: Final = 1e9

#: Written by the picker, in this order.
_INPUTS: Final = (
    Feature("input_tokens", "tokens", 0, 1e7, "length of the prompt"),
    Feature("expected_output_tokens", "tokens", 0, 1e7, "expected length of the answer; NaN unknown"),
    Feature("prefix_hit", "fraction", 0, 1, "part of the prompt that the endpoint's prefix cache holds"),
    Feature("waiting_requests", "requests", 0, _MANY, "queue of the endpoint at its last scrape"),
    Feature("running_requests", "requests", 0, _MANY, "batch of the endpoint at its last scrape"),
    Feature("kv_usage", "fraction", 0, 1, "part of the KV cache in use at the last scrape"),
    Feature("kv_capacity_tokens", "tokens", 0, _TOKENS, "size of the KV cache; NaN unknown"),
    Feature("metrics_age_s", "s", 0, 1e6, "age of the last scrape"),
    Feature("inflight_requests", "requests", 0, _MANY, "sent by this picker, not ended"),
    Feature("awaiting_requests", "requests", 0, _MANY, "of these, without a first byte"),
    Feature("unseen_requests", "requests", 0, _MANY, "of these, sent after the last scrape"),
    Feature(
        "prefill_tokens_in_flight",
        "tokens",
        0,
        _TOKENS,
        "uncached prompt tokens of the requests without a first byte, this one excluded",
    ),
    Feature(
        "decode_tokens_in_flight",
        "tokens",
        0,
        _TOKENS,
        "prompt and expected output tokens of the requests past their first byte",
    ),
    Feature(
        "recent_tpot_s",
        "s",
        0,
        1e4,
        "TPOT of the endpoint's last answers: mean += (value - mean) / min(answers, 8); NaN before the first",
    ),
    Feature(
        "recent_prefill_rate",
        "tokens/s",
        0,
        _TOKENS,
        "uncached prompt tokens sent to the endpoint: sum of tokens x exp(-age / 10 s) / 10 s",
    ),
    Feature(
        "quiet_s",
        "s",
        0,
        1e6,
        "since the endpoint's last first byte, or since the first unanswered request was sent if that is "
        "later; 0 when none is unanswered",
    ),
    Feature("adapter_state", "AdapterState", 0, max(AdapterState), "the adapter that the request needs"),
    Feature("role", "Role", 0, max(Role), "what the endpoint does for the request"),
    Feature("endpoint_class", "class_code", 0, MAX_CLASS_CODE, "kind of the endpoint, by a label; 0 is none"),
)

#: Computed by `matrix.derive`.
_DERIVED: Final = (
    Feature("uncached_tokens", "tokens", 0, 1e7, "input_tokens x (1 - prefix_hit)"),
    Feature("prefill_work_tokens", "tokens", 0, _TOKENS, "uncached_tokens + prefill_tokens_in_flight"),
    Feature("ahead_requests", "requests", 0, _MANY, "waiting + unseen; awaiting where waiting is unknown"),
    Feature("batch_requests", "requests", 0, _MANY, "waiting + running + unseen; inflight where unknown"),
    Feature("kv_used_tokens", "tokens", 0, _TOKENS, "kv_usage x capacity; decode tokens where unknown"),
    Feature("kv_free_tokens", "tokens", -_TOKENS, _TOKENS, "capacity - used - uncached; NaN unknown"),
    Feature("foreign_requests", "requests", 0, _MANY, "waiting + running - (inflight - unseen), at least 0"),
)

FEATURES: Final[tuple[Feature, ...]] = _INPUTS + _DERIVED
INPUTS: Final = len(_INPUTS)
WIDTH: Final = len(FEATURES)
NAMES: Final = tuple(each.name for each in FEATURES)
INPUT_NAMES: Final = NAMES[:INPUTS]
#: Column of each feature.
COLUMN: Final = {name: index for index, name in enumerate(NAMES)}
#: Inputs whose unknown codes are written as 0.
CATEGORIES: Final = {
    "adapter_state": int(max(AdapterState)),
    "role": int(max(Role)),
    "endpoint_class": MAX_CLASS_CODE,
}
TARGETS: Final = tuple(Target)
TARGET_NAMES: Final = tuple(each.name.lower() for each in Target)

#: Grows when the meaning of a feature, a regime or a term of the base model changes while names stay.
MEANING: Final = 2


def _digest() -> bytes:
    text = "\n".join(f"{each.name}|{each.unit}|{each.low:g}|{each.high:g}" for each in FEATURES)
    return hashlib.sha256(f"{MEANING}\n{text}".encode()).digest()[:8]


#: Eight bytes; what is trained, predicted or stored under another hash is refused.
SCHEMA_HASH: Final = _digest()

_ROLES: Final = {
    "": Role.BOTH,
    "both": Role.BOTH,
    "prefill-decode": Role.BOTH,
    "encode-prefill-decode": Role.BOTH,
    "monolithic": Role.BOTH,
    "prefill": Role.PREFILL,
    "encode-prefill": Role.PREFILL,
    "decode": Role.DECODE,
}


def role_of(label: str | None) -> Role:
    """Return the role that a label names; `OTHER` for a name that is not known."""
    return _ROLES.get((label or "").strip().lower(), Role.OTHER)


def class_code(label: str | None) -> int:
    """Return the `endpoint_class` of a label's value: 0 without one, else its hash in [1, 65535]."""
    return zlib.crc32(label.encode()) % MAX_CLASS_CODE + 1 if label else 0
