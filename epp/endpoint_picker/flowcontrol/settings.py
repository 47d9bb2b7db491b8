"""What flow control takes from a configuration: plain frozen values, with their policies made."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from endpoint_picker.flowcontrol.policies import FairnessPolicy, OrderingPolicy, UsageLimitPolicy
from endpoint_picker.scheduling.plugin import Plugin, SaturationDetector

MAX_BAND_BYTES: Final = 1_000_000_000
MAX_BAND_REQUESTS: Final = 5000
REQUEST_TTL_S: Final = 60.0
FAIL_OPEN_AFTER_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BandSettings:
    """One priority band, or the template of those that are not listed."""

    fairness: FairnessPolicy
    ordering: OrderingPolicy
    max_bytes: int = MAX_BAND_BYTES
    max_requests: int = MAX_BAND_REQUESTS
    min_share: float = 0.0
    """Part of the served tokens that the band gets while it has requests waiting, [0, 1)."""
    max_wait_s: float = inf
    """Longest wait of a request that is served; from half of it on the band goes first in one dispatch of
    `queue.AGED_EVERY`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings:
    """The flow control of a pool."""

    detector: SaturationDetector
    usage_limits: UsageLimitPolicy
    default_band: BandSettings
    negative_band: BandSettings
    """Template of bands below 0 that are not listed."""
    bands: Mapping[int, BandSettings] = field(default_factory=dict)
    """Priority to the band, as listed."""
    max_bytes: float = inf
    max_requests: float = inf
    ttl_s: float = REQUEST_TTL_S
    """Longest wait; infinite is none."""
    no_endpoint_ttl_s: float = REQUEST_TTL_S
    """The same while the pool has no endpoint."""
    trust_tenant_headers: bool = False
    """Whether the fairness id of a request's headers counts; otherwise all requests are of one tenant."""
    fail_open_after_s: float = FAIL_OPEN_AFTER_S
    """Age of an endpoint's metrics from which the ledger alone tells its load."""
    model_limits: Mapping[str, int] = field(default_factory=dict)
    """Model to the most requests in flight."""
    evicts: bool = False
    """Whether requests below 0 at servers are ended for more important ones."""

    @property
    def policies(self) -> tuple[Plugin, ...]:
        """Return the policies of all bands, each once."""
        bands = (self.default_band, self.negative_band, *self.bands.values())
        found: list[Plugin] = [self.usage_limits]
        for band in bands:
            found += [band.fairness, band.ordering]
        return tuple({id(each): each for each in found}.values())

    def band(self, priority: int) -> BandSettings:
        """Return the settings of a band."""
        listed = self.bands.get(priority)
        if listed is not None:
            return listed
        return self.negative_band if priority < 0 else self.default_band

    def shared_by(self, replicas: int) -> "FlowSettings":
        """Return the part of one of `replicas` pickers: each limit of the pool over their number."""
        if replicas <= 1:
            return self
        return replace(
            self,
            default_band=_part(self.default_band, replicas),
            negative_band=_part(self.negative_band, replicas),
            bands={priority: _part(band, replicas) for priority, band in self.bands.items()},
            max_bytes=self.max_bytes / replicas,
            max_requests=max(1.0, self.max_requests / replicas),
            model_limits={name: max(1, most // replicas) for name, most in self.model_limits.items()},
        )


def _part(band: BandSettings, replicas: int) -> BandSettings:
    return replace(
        band,
        max_bytes=max(1, band.max_bytes // replicas),
        max_requests=max(1, band.max_requests // replicas),
    )
