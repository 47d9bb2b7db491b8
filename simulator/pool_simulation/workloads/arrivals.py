"""Arrival processes: when requests, or the first requests of sessions, come. Pure."""

import math
from collections.abc import Iterator
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from pool_simulation.workloads.distributions import MAX_VALUE, Distribution, Fixed, Floats, Part

_BLOCK: Final = 256

Rate = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class _Open(Part):
    rate: Rate
    """Arrivals a second, on average."""

    def times(self, rng: np.random.Generator, scale: float) -> Iterator[float]:
        """Yield arrival times in order, seconds, for ever. `scale` multiplies the rate."""
        now = 0.0
        while True:
            for gap in self._gaps(rng, 1.0 / (self.rate * scale)).tolist():
                now += gap
                yield now

    def _gaps(self, rng: np.random.Generator, mean_s: float) -> Floats:
        raise NotImplementedError


class Constant(_Open):
    """One arrival every 1/rate seconds."""

    type: Literal["constant"]

    @override
    def _gaps(self, rng: np.random.Generator, mean_s: float) -> Floats:
        return np.full(_BLOCK, mean_s)


class Poisson(_Open):
    """Independent arrivals: exponential gaps."""

    type: Literal["poisson"]

    @override
    def _gaps(self, rng: np.random.Generator, mean_s: float) -> Floats:
        return rng.exponential(mean_s, _BLOCK)


class Gamma(_Open):
    """Bursts: Gamma-distributed gaps of coefficient of variation `cv`; 1 is Poisson, 3 clearly bursty."""

    type: Literal["gamma"]
    cv: Annotated[float, Field(ge=0.05, le=20)]

    @override
    def _gaps(self, rng: np.random.Generator, mean_s: float) -> Floats:
        shape = self.cv**-2
        return rng.gamma(shape, mean_s / shape, _BLOCK)


class Diurnal(_Open):
    """Poisson arrivals whose rate swings as a sine: lowest at the start, highest half a period later."""

    type: Literal["diurnal"]
    period_s: Annotated[float, Field(ge=0.001, le=MAX_VALUE)] = 86_400.0
    peak_to_trough: Annotated[float, Field(ge=1, le=1000)] = 4.0
    """Highest rate over lowest."""

    def rate_at(self, now: float) -> float:
        """Return the rate at a time, arrivals a second."""
        swing = (self.peak_to_trough - 1) / (self.peak_to_trough + 1)
        return self.rate * (1 - swing * math.cos(2 * math.pi * now / self.period_s))

    @override
    def times(self, rng: np.random.Generator, scale: float) -> Iterator[float]:
        """Yield arrival times in order, seconds, for ever: a Poisson process at the peak rate, thinned."""
        peak = self.rate_at(self.period_s / 2)
        now = 0.0
        while True:
            gaps, kept = rng.exponential(1.0 / (peak * scale), _BLOCK), rng.random(_BLOCK)
            for gap, lot in zip(gaps.tolist(), kept.tolist(), strict=True):
                now += gap
                if lot * peak < self.rate_at(now):
                    yield now


class ClosedLoop(Part):
    """A fixed number of clients. Each waits for its answer, thinks, and sends the next request."""

    type: Literal["closed_loop"]
    clients: Annotated[int, Field(ge=1, le=100_000)]
    think_s: Distribution = Fixed(type="fixed", value=0.0)
    """Between the end of a session and the next, seconds."""
    ramp_s: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """The clients' first requests are spread evenly over this time, seconds."""


OpenArrivals = Constant | Poisson | Gamma | Diurnal
Arrivals = Annotated[OpenArrivals | ClosedLoop, Field(discriminator="type")]
