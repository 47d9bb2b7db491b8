"""program-aware-fairness: least attained service, and the wait of the flow's head. Pure."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from endpoint_picker.flowcontrol.policies import FairnessPolicy, Lanes
from endpoint_picker.flowcontrol.queued import Flow
from endpoint_picker.scheduling.plugin import PluginParams


class ProgramAwareParams(PluginParams):
    """Parameters of program-aware-fairness."""

    strategy: Literal["las"] = "las"
    """How flows are compared: by least attained service."""
    eviction_ttl_seconds: float = Field(default=3600.0, gt=0.0)
    """Seconds without a request after which a flow's service is forgotten."""
    eviction_sweep_seconds: float = Field(default=300.0, gt=0.0)
    """Read so that configurations of others load: idle flows are looked at with every request."""
    las_weight_service: float = Field(default=0.8, ge=0.0)
    """Weight of the service."""
    las_weight_head_wait: float = Field(default=0.2, ge=0.0)
    """Weight of the wait."""
    las_half_life_seconds: float = Field(default=60.0, gt=0.0)
    """Seconds after which half of a service is forgotten."""


class ProgramAwareFairness(FairnessPolicy):
    """The flow with the highest wS * (1 - service) + wW * wait of its head, both scaled to [0, 1].

    Service is the prompt's tokens plus twice the answer's, and halves with every half life. The scales go
    from the smallest to the largest value of the flows with waiting requests; a dispatch looks at each of
    them, so it costs in proportion to their number.
    """

    __slots__ = ("_params",)
    type_name: ClassVar[str] = "program-aware-fairness"
    params_type = ProgramAwareParams

    def __init__(self, params: ProgramAwareParams) -> None:
        self._params = params

    @override
    def lanes(self) -> Lanes:
        """Return the state of one band."""
        return ServiceLanes(self._params)


class ServiceLanes(Lanes):
    """The active flows in the order of their turns, and the service of each as of its last change."""

    __slots__ = ("_active", "_half_life", "_keep", "_service", "_wait")

    def __init__(self, params: ProgramAwareParams) -> None:
        self._half_life = params.las_half_life_seconds
        self._keep = params.eviction_ttl_seconds
        self._service = params.las_weight_service
        self._wait = params.las_weight_head_wait
        self._active: dict[Flow, None] = {}

    @override
    def __len__(self) -> int:
        return len(self._active)

    @override
    def activate(self, flow: Flow, now: float) -> None:
        self._active[flow] = None

    @override
    def deactivate(self, flow: Flow, now: float) -> None:
        self._active.pop(flow, None)

    @override
    def select(self, now: float) -> Flow | None:
        known = list(self._known(now))
        if not known:
            return None
        services, waits = [each[1] for each in known], [each[2] for each in known]
        least, longest = min(services), min(waits)
        service_span, wait_span = max(services) - least, max(waits) - longest

        def score(each: tuple[Flow, float, float]) -> float:
            attained = (each[1] - least) / service_span if service_span else 0.0
            waited = (each[2] - longest) / wait_span if wait_span else 0.0
            return self._service * (1.0 - attained) + self._wait * waited

        return max(known, key=score)[0]

    @override
    def served(self, flow: Flow, tokens: float, now: float) -> None:
        flow.standing = max(0.0, self._decayed(flow, now) + tokens)
        flow.standing_at = now

    @override
    def remembers(self, flow: Flow, now: float) -> bool:
        return now - flow.standing_at < self._keep and flow.standing > 0.0

    def _known(self, now: float) -> Iterator[tuple[Flow, float, float]]:
        """Yield each active flow with its service and the wait of its head."""
        for flow in self._active:
            head = flow.head()
            if head is not None:
                yield flow, self._decayed(flow, now), now - head[3].enqueued_at

    def _decayed(self, flow: Flow, now: float) -> float:
        return float(flow.standing * 0.5 ** ((now - flow.standing_at) / self._half_life))
