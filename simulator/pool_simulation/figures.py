"""The figures of one run, of the requests that arrived in a window; their intervals over seeds. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

import numpy as np

from pool_simulation.results import NO_SERVER, Fate, Floats, Results


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of the requests of a window. Times are seconds, of served requests; NaN when there are none."""

    requests: float
    """Requests that arrived, however they ended."""
    refused: float
    failed: float
    """Requests that failed or did not end."""
    served_per_s: float
    """Requests of the window that were served, over its length."""
    ttft_mean_s: float
    """Time to first token."""
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    tpot_mean_s: float
    """Mean time per output token after the first, of requests with more than one."""
    tpot_p50_s: float
    tpot_p90_s: float
    tpot_p99_s: float
    e2e_mean_s: float
    """Time from arrival to the last token."""
    e2e_p50_s: float
    e2e_p90_s: float
    e2e_p99_s: float
    goodput: float
    """Share of requests that were served within their SLOs, in [0, 1]; one without SLOs meets them."""
    prefix_hit: float
    """Share of prompt tokens that servers found in their prefix cache, in [0, 1]."""
    imbalance: float
    """Tokens that the busiest server computed over the mean of all servers; 1.0 is even."""
    preemptions: float


#: Figures of which more is better; of the others less is.
MORE_IS_BETTER: Final = frozenset({"served_per_s", "goodput", "prefix_hit"})
NAMES: Final = tuple(field.name for field in fields(Figures))


def figures(results: Results, servers: int, *, since_s: float = 0.0, until_s: float = math.inf) -> Figures:
    """Return the figures of the requests that arrived from `since_s` to before `until_s`.

    `servers` is the pool's size. With an open end the window ends with the last arrival.
    """
    arrived = np.array(results.arrived_s)
    window = (arrived >= since_s) & (arrived < until_s)
    fates = np.array([fate.value for fate in results.fates], dtype=np.int64)[window]
    ok = fates == Fate.SERVED.value
    arrived = arrived[window]
    first = np.array(results.first_token_s)[window]
    ended = np.array(results.ended_s)[window]
    output = np.array(results.output_tokens)[window]
    prompt = np.array(results.prompt_tokens)[window]
    cached = np.array(results.cached_tokens)[window]
    where = np.array(results.servers, dtype=np.int64)[window]
    requests = [each for each, inside in zip(results.requests, window.tolist(), strict=True) if inside]
    ttft = first - arrived
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(output > 1, (ended - first) / (output - 1), np.nan)
    within = ok & _meets(ttft, [each.slo_ttft_ms for each in requests])
    within &= _meets(tpot, [each.slo_tpot_ms for each in requests])
    reached = where != NO_SERVER
    work = np.bincount(where[reached], weights=(prompt - cached + output)[reached], minlength=servers)
    end = until_s if until_s < math.inf else float(arrived.max(initial=since_s))
    e2e = (ended - arrived)[ok]
    ttft, tpot = ttft[ok], tpot[ok]
    tpot = tpot[~np.isnan(tpot)]
    return Figures(
        requests=float(arrived.size),
        refused=float((fates == Fate.REFUSED.value).sum()),
        failed=float(((fates == Fate.FAILED.value) | (fates == Fate.UNFINISHED.value)).sum()),
        served_per_s=float(ok.sum()) / (end - since_s) if end > since_s else math.nan,
        ttft_mean_s=_mean(ttft),
        ttft_p50_s=_percentile(ttft, 50),
        ttft_p90_s=_percentile(ttft, 90),
        ttft_p99_s=_percentile(ttft, 99),
        tpot_mean_s=_mean(tpot),
        tpot_p50_s=_percentile(tpot, 50),
        tpot_p90_s=_percentile(tpot, 90),
        tpot_p99_s=_percentile(tpot, 99),
        e2e_mean_s=_mean(e2e),
        e2e_p50_s=_percentile(e2e, 50),
        e2e_p90_s=_percentile(e2e, 90),
        e2e_p99_s=_percentile(e2e, 99),
        goodput=float(within.mean()) if within.size else math.nan,
        prefix_hit=float(cached.sum() / prompt.sum()) if prompt.sum() else math.nan,
        imbalance=float(work.max() / work.mean()) if work.any() else math.nan,
        preemptions=float(np.array(results.preemptions)[window].sum()),
    )


def _meets(times: Floats, limits_ms: Sequence[float | None]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    limits = np.array([math.inf if each is None else each / 1000 for each in limits_ms])
    return ~(times > limits)  # NaN, of a request without such a time, exceeds nothing


def _mean(values: Floats) -> float:
    return float(values.mean()) if values.size else math.nan


def _percentile(values: Floats, percent: float) -> float:
    return float(np.percentile(values, percent)) if values.size else math.nan


class Interval(NamedTuple):
    """A mean over seeds and the half width of its 95 % confidence interval."""

    mean: float
    half: float
    """NaN with fewer than two values."""

    @property
    def low(self) -> float:
        """Return the lower end."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """Return the upper end."""
        return self.mean + self.half


#: 97.5 % quantiles of Student's t distribution for 1 to 30 degrees of freedom.
_T: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of the values, one for each seed, with Student's 95 % interval."""
    count = len(values)
    if count == 0:
        return Interval(math.nan, math.nan)
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean, math.nan)
    spread = math.sqrt(math.fsum((each - mean) ** 2 for each in values) / (count - 1))
    return Interval(mean, _T[min(count - 1, len(_T)) - 1] * spread / math.sqrt(count))


def paired(values: Sequence[float], others: Sequence[float]) -> Interval:
    """Return the interval of value minus other, seed by seed: both saw the same requests."""
    return interval([one - other for one, other in zip(values, others, strict=True)])
