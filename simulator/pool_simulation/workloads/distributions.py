"""Distributions of token counts and times, as a workload file states them, and endless draws from them. Pure.

All randomness comes from a numpy Generator that the caller seeds: equal seeds give equal draws with equal
versions of numpy.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from typing_extensions import override

Floats = NDArray[np.float64]

#: Largest value of any distribution: tokens, seconds or counts.
MAX_VALUE: Final = 1e8
#: The standard normal's 90th percentile.
_NORMAL_P90: Final = 1.2815515655446004

Positive = Annotated[float, Field(gt=0, le=MAX_VALUE, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=MAX_VALUE, allow_inf_nan=False)]


class Part(BaseModel):
    """A part of a workload file: unknown keys and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Bounded(Part):
    min: NotNegative = 0.0
    """Smaller draws are raised to it."""
    max: Positive = MAX_VALUE
    """Larger draws are lowered to it."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            msg = f"min {self.min:g} is above max {self.max:g}"
            raise ValueError(msg)
        return self

    def sample(self, rng: np.random.Generator, count: int) -> Floats:
        """Return float64[count], within [min, max]."""
        return np.clip(self._raw(rng, count), self.min, self.max)

    def _raw(self, rng: np.random.Generator, count: int) -> Floats:
        raise NotImplementedError


class Fixed(_Bounded):
    """Always one value. A plain number in the file means this."""

    type: Literal["fixed"]
    value: NotNegative

    @override
    def _raw(self, rng: np.random.Generator, count: int) -> Floats:
        return np.full(count, self.value)


class Uniform(_Bounded):
    """Evenly from `low` to `high`."""

    type: Literal["uniform"]
    low: NotNegative
    high: Positive

    @model_validator(mode="after")
    def _low_first(self) -> Self:
        if self.low > self.high:
            msg = f"low {self.low:g} is above high {self.high:g}"
            raise ValueError(msg)
        return self

    @override
    def _raw(self, rng: np.random.Generator, count: int) -> Floats:
        return rng.uniform(self.low, self.high, count)


class Exponential(_Bounded):
    """Exponential with this mean."""

    type: Literal["exponential"]
    mean: Positive

    @override
    def _raw(self, rng: np.random.Generator, count: int) -> Floats:
        return rng.exponential(self.mean, count)


class Lognormal(_Bounded):
    """Log-normal: `median`, and the 90th percentile `p90`."""

    type: Literal["lognormal"]
    median: Positive
    p90: Positive

    @model_validator(mode="after")
    def _spread(self) -> Self:
        if self.p90 < self.median:
            msg = f"p90 {self.p90:g} is below the median {self.median:g}"
            raise ValueError(msg)
        return self

    @override
    def _raw(self, rng: np.random.Generator, count: int) -> Floats:
        sigma = math.log(self.p90 / self.median) / _NORMAL_P90
        return rng.lognormal(math.log(self.median), sigma, count)


class Geometric(_Bounded):
    """1, 2, 3, ... with this mean: after each, the next comes with the same probability."""

    type: Literal["geometric"]
    mean: Annotated[float, Field(ge=1, le=MAX_VALUE)]

    @override
    def _raw(self, rng: np.random.Generator, count: int) -> Floats:
        return rng.geometric(1.0 / self.mean, count).astype(np.float64)


class Empirical(_Bounded):
    """One of `values`, each as likely as the others."""

    type: Literal["empirical"]
    values: Annotated[list[NotNegative], Field(min_length=1, max_length=100_000)]

    @override
    def _raw(self, rng: np.random.Generator, count: int) -> Floats:
        return rng.choice(np.asarray(self.values, np.float64), count)


def _number_is_fixed(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"type": "fixed", "value": value}
    return value


Distribution = Annotated[
    Annotated[Fixed | Uniform | Exponential | Lognormal | Geometric | Empirical, Field(discriminator="type")],
    BeforeValidator(_number_is_fixed),
]
"""A distribution, or a plain number for a fixed value."""


def draws(distribution: Distribution, rng: np.random.Generator, block: int) -> Iterator[float]:
    """Yield values for ever, drawn `block` at a time: numpy's calls cost more than its values."""
    while True:
        yield from distribution.sample(rng, block).tolist()


def counts(distribution: Distribution, rng: np.random.Generator, block: int) -> Iterator[int]:
    """Yield the values rounded to whole numbers of at least 1, for ever."""
    while True:
        yield from np.maximum(np.rint(distribution.sample(rng, block)), 1).astype(np.int64).tolist()


def zipf_weights(count: int, exponent: float) -> Floats:
    """Return float64[count], summing to 1, in proportion to 1 / rank**exponent; 0 makes all equal."""
    weights = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    shares: Floats = weights / weights.sum()
    return shares


def ranks(weights: Floats, rng: np.random.Generator, block: int) -> Iterator[int]:
    """Yield indices for ever, each as likely as its weight says."""
    upper = np.cumsum(weights)
    upper /= upper[-1]
    while True:
        yield from np.searchsorted(upper, rng.random(block), side="right").tolist()
