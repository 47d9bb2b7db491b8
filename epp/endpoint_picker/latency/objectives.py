"""What the headers of a request say about its prediction: objectives, opting in, tenant."""

from collections.abc import Mapping
from typing import Final, NamedTuple

#: Names of each header, the one that wins first.
TTFT_HEADERS: Final = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
TPOT_HEADERS: Final = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
#: "true" asks for a prediction where the configuration leaves it to the request.
OPT_IN_HEADER: Final = "x-prediction-based-scheduling"

#: Names of the header with the fairness id, the one that wins first.
TENANT_HEADERS: Final = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
_READ: Final = frozenset({*TTFT_HEADERS, *TPOT_HEADERS, *TENANT_HEADERS, OPT_IN_HEADER})
#: Longest fairness id that is kept, in characters.
MAX_TENANT: Final = 64

#: Bounds that an objective is clamped to, in milliseconds.
LOWEST_MS: Final = 0.01
HIGHEST_MS: Final = 3_600_000.0


class Objectives(NamedTuple):
    """Seconds; 0.0 is no objective."""

    ttft_s: float = 0.0
    tpot_s: float = 0.0

    @property
    def any(self) -> bool:
        """Tell whether the request has an objective."""
        return self.ttft_s > 0.0 or self.tpot_s > 0.0


NO_OBJECTIVES: Final = Objectives()


class Marks(NamedTuple):
    """What the headers of one request say."""

    asks: bool = False
    """It opts in to prediction."""
    objectives: Objectives = NO_OBJECTIVES
    tenant: str = ""
    """Its fairness id."""


NO_MARKS: Final = Marks()


def marks_of(headers: Mapping[str, str]) -> Marks:
    """Return the marks. An objective that is no positive number is none; others are clamped."""
    pick = getattr(headers, "pick", None)  # the picker's own view of headers finds all in one pass
    found: Mapping[str, str] = headers if pick is None else pick(_READ)
    if not found:
        return NO_MARKS
    return Marks(
        found.get(OPT_IN_HEADER, "").strip().lower() == "true",
        Objectives(_seconds(found, TTFT_HEADERS), _seconds(found, TPOT_HEADERS)),
        next((found[name][:MAX_TENANT] for name in TENANT_HEADERS if found.get(name)), ""),
    )


def _seconds(headers: Mapping[str, str], names: tuple[str, ...]) -> float:
    for name in names:
        text = headers.get(name)
        if text is not None:
            try:
                value = float(text)
            except ValueError:
                return 0.0
            # Also false for NaN.
            return min(max(value, LOWEST_MS), HIGHEST_MS) / 1000.0 if value > 0.0 else 0.0
    return 0.0
