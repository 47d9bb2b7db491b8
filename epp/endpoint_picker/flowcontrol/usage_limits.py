"""The usage-limit policies: the saturation from which each band is held back. Pure."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from typing_extensions import override

from endpoint_picker.flowcontrol.policies import UsageLimitPolicy
from endpoint_picker.scheduling.plugin import PluginParams


class StaticUsageLimitParams(PluginParams):
    """Parameters of static-usage-limit-policy."""

    threshold: float = Field(default=1.0, gt=0.0)
    """Saturation from which every band is held back."""


class StaticUsageLimitPolicy(UsageLimitPolicy):
    """The same ceiling for every band."""

    __slots__ = ("_known", "_threshold")
    type_name: ClassVar[str] = "static-usage-limit-policy"
    params_type = StaticUsageLimitParams

    def __init__(self, params: StaticUsageLimitParams) -> None:
        self._threshold = params.threshold
        self._known: Sequence[float] = ()

    @override
    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:
        """Return the threshold for each."""
        if len(self._known) != len(priorities):
            self._known = (self._threshold,) * len(priorities)
        return self._known


class PriorityHoldbackParams(PluginParams):
    """Parameters of priority-holdback-policy."""

    shape: Literal["linear"] = "linear"
    """How the ceiling falls between the highest band and the lowest."""
    domain: Literal["rank", "value"] = "rank"
    """What the ceiling falls with: the band's place among the bands, or its priority."""
    min_ceiling: float = Field(gt=0.0)
    """Ceiling of the lowest band."""
    max_ceiling: float = Field(default=1.0, gt=0.0)
    """Ceiling of the highest band, and of the only one."""

    @model_validator(mode="after")
    def _is_no_less(self) -> "PriorityHoldbackParams":
        if self.min_ceiling > self.max_ceiling:
            raise ValueError("minCeiling is above maxCeiling")
        return self


class PriorityHoldbackPolicy(UsageLimitPolicy):
    """A ceiling that falls in a line from the highest band to the lowest: room is kept for the higher."""

    __slots__ = ("_by_value", "_least", "_most")
    type_name: ClassVar[str] = "priority-holdback-policy"
    params_type = PriorityHoldbackParams

    def __init__(self, params: PriorityHoldbackParams) -> None:
        self._by_value = params.domain == "value"
        self._least = params.min_ceiling
        self._most = params.max_ceiling

    @override
    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:
        """Return the ceiling of each band by its rank or value."""
        count = len(priorities)
        if count < 2:
            return (self._most,) * count
        highest, lowest = priorities[0], priorities[-1]
        span = self._most - self._least
        if self._by_value:
            whole = highest - lowest
            return [self._most - span * (highest - each) / whole for each in priorities]
        return [self._most - span * rank / (count - 1) for rank in range(count)]


class SoftReflectiveCeilingPolicy(UsageLimitPolicy):
    """Lower bands get fewer turns the fuller the pool is; the highest band's ceiling is always 1.

    Band i of N has the limit 1 - i * saturation / (N - 1). Below it the ceiling is 1; from it on the ceiling
    is 1 in one call of round(saturation / (1 - saturation)), and 0 in the others. At saturation 1 it is 0.
    """

    __slots__ = ("_tick",)
    type_name: ClassVar[str] = "soft-reflective-ceiling-policy"

    def __init__(self, params: PluginParams) -> None:
        self._tick = 0

    @override
    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:
        """Return the ceiling of each band in this call."""
        self._tick += 1
        count = len(priorities)
        if count < 2:
            return (1.0,) * count
        if saturation >= 1.0:
            return (1.0, *(0.0,) * (count - 1))
        every = max(1, round(saturation / (1.0 - saturation)))
        is_open = self._tick % every == 0
        return [
            1.0 if not rank or is_open or saturation < 1.0 - rank * saturation / (count - 1) else 0.0
            for rank in range(count)
        ]
