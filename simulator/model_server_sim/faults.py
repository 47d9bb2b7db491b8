"""Faults that an admin injects into the server: what they are and how they are asked for. Pure."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace

from model_server_sim.protocol import ApiError

METRICS = ("live", "stale", "absent")
HANGS = ("no", "engine", "server")
TOKENIZE = ("live", "hang", "absent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What is wrong with the server; the defaults are a healthy one. Raises ValueError out of range."""

    slow: float = 1.0
    """Factor on the time of every iteration, 0.01 to 1000."""
    hang: str = "no"
    """`engine`: iterations stop, requests queue. `server`: no request is answered, `/health` included."""
    error_rate: float = 0.0
    """Share of generation requests, 0 to 1, that are refused with `error_status`."""
    error_status: int = 500
    """400 to 599."""
    reset_rate: float = 0.0
    """Share of streamed answers, 0 to 1, whose connection is reset after `reset_after_tokens` tokens."""
    reset_after_tokens: int = 1
    """At least 0."""
    metrics: str = "live"
    """`stale`: the page stays as it was. `absent`: 404."""
    tokenize: str = "live"
    """`hang`: /tokenize does not answer. `absent`: 404."""

    def __post_init__(self) -> None:
        """Check types and ranges: the values come from a request."""
        for spec in fields(self):
            value, kind = getattr(self, spec.name), type(spec.default)
            allowed = (int, float) if kind is float else (kind,)
            if isinstance(value, bool) or not isinstance(value, allowed):
                msg = f"{spec.name} must be a {'string' if kind is str else 'number'}"
                raise ValueError(msg)
        for name, low, high in (
            ("slow", 0.01, 1000),
            ("error_rate", 0, 1),
            ("error_status", 400, 599),
            ("reset_rate", 0, 1),
            ("reset_after_tokens", 0, 2**31),
        ):
            if not low <= getattr(self, name) <= high:
                msg = f"{name} must be between {low} and {high}"
                raise ValueError(msg)
        for name, choices in (("metrics", METRICS), ("hang", HANGS), ("tokenize", TOKENIZE)):
            if getattr(self, name) not in choices:
                msg = f"{name} must be one of {', '.join(choices)}"
                raise ValueError(msg)

    def changed(self, body: bytes) -> "Faults":
        """Return these faults with the fields of a JSON object replaced. Raises ApiError 400."""
        try:
            given = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ApiError(400, f"the body is not JSON: {error}") from None
        if not isinstance(given, dict):
            raise ApiError(400, "the body must be a JSON object")
        known = [spec.name for spec in fields(self)]
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise ApiError(400, f"unknown {', '.join(unknown)}; the fields are {', '.join(known)}")
        try:
            return replace(self, **given)
        except ValueError as error:
            raise ApiError(400, str(error)) from None

    def refusal(self, uniform: Callable[[], float]) -> ApiError | None:
        """Return the error that a request gets, or None."""
        if self.error_rate and uniform() < self.error_rate:
            return ApiError(self.error_status, "an injected fault", kind="InternalServerError")
        return None

    def reset_after(self, uniform: Callable[[], float]) -> int | None:
        """Return after how many tokens a stream is reset, or None."""
        return self.reset_after_tokens if self.reset_rate and uniform() < self.reset_rate else None

    def json(self) -> bytes:
        """Return all fields as a JSON object."""
        return json.dumps(asdict(self)).encode()
