"""Flow control's part of a configuration: from its section to settings, and back to plain values."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final, Protocol

from endpoint_picker.config.effective import Effective
from endpoint_picker.config.schema import BandTemplate, EndpointPickerConfig, FlowControlSpec
from endpoint_picker.config_errors import ConfigError, ConsequentError, Faults
from endpoint_picker.flowcontrol.ordering import FcfsOrderingPolicy
from endpoint_picker.flowcontrol.policies import FairnessPolicy, OrderingPolicy, UsageLimitPolicy
from endpoint_picker.flowcontrol.settings import (
    MAX_BAND_BYTES,
    MAX_BAND_REQUESTS,
    BandSettings,
    FlowSettings,
)
from endpoint_picker.flowcontrol.simple_fairness import GlobalStrictFairnessPolicy
from endpoint_picker.flowcontrol.usage_limits import StaticUsageLimitPolicy
from endpoint_picker.scheduling.plugin import Plugin, SaturationDetector

FLOW_CONTROL_GATE: Final = "flowControl"
#: Policies that a configuration may name without listing them.
_BUILT_IN: Final[Mapping[str, type[Plugin]]] = {
    each.type_name: each for each in (FcfsOrderingPolicy, GlobalStrictFairnessPolicy, StaticUsageLimitPolicy)
}
_PATH: Final = "flowControl"
#: Most that all bands' minShare may come to: the rest is for what goes by priority.
_MOST_SHARED: Final = 0.9


class Listed(Protocol):
    """The part of `build.Instances` that is needed here."""

    broken: set[str]
    used: set[str]

    def get(self, name: str, /) -> Plugin | None:
        """Return the plugin of that name."""
        ...


def gate_is_on(gates: Sequence[str]) -> bool:
    """Tell whether the feature gate is on; the last mention counts."""
    on = False
    for gate in gates:
        name, _, value = gate.partition("=")
        if name == FLOW_CONTROL_GATE:
            on = value != "false"
    return on


def flow_settings(
    spec: FlowControlSpec, listed: Listed, detector: SaturationDetector, faults: Faults
) -> FlowSettings:
    """Return the settings of the section, checked whether or not the gate is on.

    Each fault is noted with its path.
    """
    policies = _Policies(listed)
    default = policies.band(spec.default_priority_band, f"{_PATH}.defaultPriorityBand", faults)
    negative = default
    if spec.default_negative_priority_band is not None:
        path = f"{_PATH}.defaultNegativePriorityBand"
        negative = policies.band(spec.default_negative_priority_band, path, faults)
    bands: dict[int, BandSettings] = {}
    for index, each in enumerate(spec.priority_bands):
        path = f"{_PATH}.priorityBands[{index}]"
        with faults.noted():
            if each.priority in bands:
                raise ConfigError(f"{path}.priority", f"a second band of priority {each.priority}; keep one")
        bands[each.priority] = policies.band(each, path, faults)
    with faults.noted():
        shares = sum(band.min_share for band in bands.values())
        if shares > _MOST_SHARED:
            text = f"the bands' minShare comes to {shares:g}; it may be {_MOST_SHARED} at most"
            raise ConfigError(f"{_PATH}.priorityBands", text)
    limits: dict[str, int] = {}
    for index, limit in enumerate(spec.model_limits):
        with faults.noted():
            if limit.model in limits:
                path = f"{_PATH}.modelLimits[{index}].model"
                raise ConfigError(path, f'a second limit of "{limit.model}"; keep one')
        limits[limit.model] = limit.max_requests
    ceilings: UsageLimitPolicy = StaticUsageLimitPolicy(StaticUsageLimitPolicy.params_type())
    with faults.noted():
        name, path = spec.usage_limit_policy_plugin_ref, f"{_PATH}.usageLimitPolicyPluginRef"
        found = policies.find(StaticUsageLimitPolicy.type_name if name is None else name, path)
        if not isinstance(found, UsageLimitPolicy):
            raise ConfigError(path, f'"{name}" is no usage-limit policy')
        ceilings = found
    ttl = spec.default_request_ttl
    empty = ttl if spec.no_endpoint_request_ttl is None else spec.no_endpoint_request_ttl
    return FlowSettings(
        detector=detector,
        usage_limits=ceilings,
        default_band=default,
        negative_band=negative,
        bands=bands,
        max_bytes=spec.max_bytes or inf,
        max_requests=spec.max_requests or inf,
        ttl_s=ttl or inf,
        no_endpoint_ttl_s=empty or inf,
        trust_tenant_headers=spec.trust_tenant_headers,
        fail_open_after_s=spec.metrics_fail_open_after,
        model_limits=limits,
        evicts=spec.enable_eviction,
    )


class _Policies:
    """Finds policies by name; one that is not listed is made once."""

    def __init__(self, listed: Listed) -> None:
        self._listed = listed
        self._made: dict[str, Plugin] = {}

    def band(self, spec: BandTemplate, path: str, faults: Faults) -> BandSettings:
        """Return a band's settings."""
        fairness: FairnessPolicy = GlobalStrictFairnessPolicy(GlobalStrictFairnessPolicy.params_type())
        ordering: OrderingPolicy = FcfsOrderingPolicy(FcfsOrderingPolicy.params_type())
        name, where = spec.fairness_policy_ref, f"{path}.fairnessPolicyRef"
        with faults.noted():
            found = self.find(GlobalStrictFairnessPolicy.type_name if name is None else name, where)
            if not isinstance(found, FairnessPolicy):
                raise ConfigError(where, f'"{name}" is no fairness policy')
            fairness = found
        name, where = spec.ordering_policy_ref, f"{path}.orderingPolicyRef"
        with faults.noted():
            found = self.find(FcfsOrderingPolicy.type_name if name is None else name, where)
            if not isinstance(found, OrderingPolicy):
                raise ConfigError(where, f'"{name}" is no ordering policy')
            ordering = found
        return BandSettings(
            fairness=fairness,
            ordering=ordering,
            max_bytes=spec.max_bytes or MAX_BAND_BYTES,
            max_requests=spec.max_requests or MAX_BAND_REQUESTS,
            min_share=spec.min_share,
            max_wait_s=spec.max_wait or inf,
        )

    def find(self, name: str, path: str) -> Plugin:
        """Return the plugin of that name."""
        plugin = self._listed.get(name)
        if plugin is None and name in self._listed.broken:
            raise ConsequentError(path, f'"{name}" could not be made')
        if plugin is None and name in _BUILT_IN:
            if name not in self._made:
                kind = _BUILT_IN[name]
                self._made[name] = kind(kind.params_type())
            plugin = self._made[name]
        if plugin is None:
            raise ConfigError(path, f'no plugin is named "{name}"; list it, or name one that is listed')
        self._listed.used.add(name)
        return plugin


def flow_warnings(spec: EndpointPickerConfig, *, is_on: bool) -> Iterable[str]:
    """Yield what a user may not expect of the section."""
    section = spec.flow_control
    if not is_on:
        given = section.model_fields_set - {"saturation_detector"}
        if given:
            yield (
                "flowControl is read for its saturationDetector only: the feature gate flowControl is off; "
                "add it to featureGates"
            )
        return
    bands: Sequence[BandTemplate] = (section.default_priority_band, *section.priority_bands)
    if not section.trust_tenant_headers and any(each.fairness_policy_ref for each in bands):
        yield (
            "fairness between flows has one flow only: fairness ids of headers are not trusted; set "
            "flowControl.trustTenantHeaders if the gateway sets them"
        )


def with_flow(effective: Mapping[str, Any], flow: FlowSettings, names: Effective) -> dict[str, Any]:
    """Return the effective configuration with the whole section and the gate."""

    def band(each: BandSettings) -> dict[str, Any]:
        return {
            "maxBytes": each.max_bytes,
            "maxRequests": each.max_requests,
            "fairnessPolicyRef": names.name(each.fairness),
            "orderingPolicyRef": names.name(each.ordering),
            "minShare": each.min_share,
            "maxWait": _text(each.max_wait_s),
        }

    section: dict[str, Any] = {
        **effective["flowControl"],
        "maxBytes": _whole(flow.max_bytes),
        "maxRequests": _whole(flow.max_requests),
        "defaultRequestTTL": _text(flow.ttl_s),
        "noEndpointRequestTTL": _text(flow.no_endpoint_ttl_s),
        "defaultPriorityBand": band(flow.default_band),
        "defaultNegativePriorityBand": band(flow.negative_band),
        "priorityBands": [{"priority": at, **band(each)} for at, each in sorted(flow.bands.items())],
        "usageLimitPolicyPluginRef": names.name(flow.usage_limits),
        "trustTenantHeaders": flow.trust_tenant_headers,
        "metricsFailOpenAfter": _text(flow.fail_open_after_s),
        "enableEviction": flow.evicts,
        "modelLimits": [{"model": name, "maxRequests": most} for name, most in flow.model_limits.items()],
    }
    return {**effective, "featureGates": [FLOW_CONTROL_GATE], "flowControl": section}


def _text(seconds: float) -> str:
    return "0s" if seconds == inf else f"{seconds:g}s"


def _whole(limit: float) -> int:
    return 0 if limit == inf else int(limit)
