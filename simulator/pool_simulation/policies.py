"""The policies that a benchmark compares, by name: simple ones, and pickers of several configurations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from endpoint_picker.config.registry import Registry
from inference_api.default_picker_config import DEFAULT_PICKER_CONFIG
from pool_simulation.picker_policy import PickerPolicy, PickerSettings
from pool_simulation.policy import Pick, Policy, Refused, Resume, Surroundings
from pool_simulation.precise_prefix import TYPE_NAME, precise_prefix_producer
from pool_simulation.workload import SimulatedRequest


def picker_config(weights: Mapping[str, float], picker: str = "max-score-picker", *more: str) -> str:
    """Return an EndpointPickerConfig of one profile; `more` are plugins that no profile names."""
    plugins = "".join(f"- type: {name}\n" for name in (*more, *weights, picker))
    scorers = "".join(f"  - pluginRef: {name}\n    weight: {weight:g}\n" for name, weight in weights.items())
    return (
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
        f"plugins:\n{plugins}schedulingProfiles:\n- name: default\n  plugins:\n{scorers}"
        f"  - pluginRef: {picker}\n"
    )


class RoundRobin(Policy):
    """The pool's servers take turns."""

    def __init__(self) -> None:
        self._pool: Surroundings
        self._turn = -1

    @override
    def start(self, pool: Surroundings) -> None:
        self._pool = pool

    @override
    def decide(self, request: SimulatedRequest, resume: Resume) -> Pick | Refused | None:
        listed = [server.number for server in self._pool.servers if server.in_pool]
        if not listed:
            return Refused("no-endpoints")
        self._turn = (self._turn + 1) % len(listed)
        return Pick(listed[self._turn :] + listed[: self._turn])

    @override
    def answering(self, pick: Pick, served_by: int) -> None:
        pass

    @override
    def ended(self, pick: Pick, request: SimulatedRequest, *, served: bool) -> None:
        pass

    @override
    def endpoints_changed(self) -> None:
        pass

    @override
    def restart(self, down_s: float) -> None:
        pass

    @override
    def leak(self) -> str:
        return ""


#: The plugins of the default configuration with their weights.
DEFAULT_WEIGHTS: Final = {"queue-scorer": 2.0, "kv-cache-utilization-scorer": 2.0, "prefix-cache-scorer": 3.0}
_PRECISE: Final = picker_config(DEFAULT_WEIGHTS, "max-score-picker", TYPE_NAME)


_EVENTS: Final = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: precise-prefix-cache-producer
  parameters: {speculativeIndexing: %s}
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: max-score-picker
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: max-score-picker}
"""
#: Seconds until a server's KV events reach the picker.
_EVENTS_S: Final = 0.05


def _precise(*, counts_routed: bool) -> PickerSettings:
    return PickerSettings(
        config=_PRECISE,
        plugins={TYPE_NAME: lambda pool: precise_prefix_producer(pool, counts_routed=counts_routed)},
    )


#: Pickers by name. DEFAULT_PICKER_CONFIG is what an empty EndpointPicker gets.
PICKERS: Final[Mapping[str, PickerSettings]] = {
    "random": PickerSettings(config=picker_config({}, "random-picker")),
    "least-requests": PickerSettings(config=picker_config({"active-request-scorer": 1})),
    "default": PickerSettings(config=DEFAULT_PICKER_CONFIG),
    "precise": _precise(counts_routed=False),
    "precise-routed": _precise(counts_routed=True),
    "kv-events": PickerSettings(config=_EVENTS % "false", kv_events_s=_EVENTS_S),
    "kv-events-routed": PickerSettings(config=_EVENTS % "true", kv_events_s=_EVENTS_S),
}

Make = Callable[[Registry, str], Policy]
"""Makes a policy for one run from the installed plugins and a seed."""


@dataclass(frozen=True, slots=True)
class _MakePicker:
    settings: PickerSettings

    def __call__(self, registry: Registry, seed: str) -> Policy:
        return PickerPolicy(self.settings, registry, seed)


def _round_robin(_registry: Registry, _seed: str) -> Policy:
    return RoundRobin()


def picker(settings: PickerSettings) -> Make:
    """Return a maker of pickers with these settings."""
    return _MakePicker(settings)


POLICIES: Final[Mapping[str, Make]] = {
    "round-robin": _round_robin,
    **{name: picker(settings) for name, settings in PICKERS.items()},
}
