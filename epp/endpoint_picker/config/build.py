"""From the text of an EndpointPickerConfig to a frozen profile. Everything that can fail, fails here."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar, runtime_checkable

from pydantic import ValidationError

from endpoint_picker.config import yaml_text
from endpoint_picker.config.errors import ConfigError, from_validation
from endpoint_picker.config.registry import RENAMED, Registry
from endpoint_picker.config.schema import (
    API_VERSION,
    OLD_API_VERSION,
    EndpointPickerConfig,
    PluginRef,
    PluginSpec,
    ProfileSpec,
)
from endpoint_picker.config.settings_plugins import (
    ApproxPrefixCacheProducer,
    CoreMetricsExtractor,
    ExtractorParams,
    MetricsDataSource,
    PrefixParams,
    SourceParams,
)
from endpoint_picker.datalayer.table import EndpointTable, Rows
from endpoint_picker.flowcontrol.admission import UtilizationDetector
from endpoint_picker.scheduling.pickers.max_score import MaxScorePicker
from endpoint_picker.scheduling.pickers.params import PickerParams
from endpoint_picker.scheduling.plugin import Filter, Picker, Plugin, Scorer
from endpoint_picker.scheduling.profile import FilterFn, Profile, WeightedScorer, clamped
from inference_api.default_picker_config import DEFAULT_PICKER_CONFIG

#: Gates that may be named; a gate that is on must be one that this version acts on, and there is none.
_GATES_OFF: Final = frozenset({"flowControl"})

_P = TypeVar("_P", bound=Plugin)


@runtime_checkable
class Detector(Protocol):
    """Measures how full the candidates are."""

    def saturation(self, rows: Rows, table: EndpointTable, now: float) -> float:
        """Return load over capacity; from 1.0 on the rows are saturated."""
        ...


@dataclass(frozen=True, slots=True)
class ScrapePlan:
    """What is read of the model servers."""

    source: SourceParams
    extractor: ExtractorParams


@dataclass(frozen=True, slots=True)
class PickerConfig:
    """A configuration that works."""

    profile: Profile
    detector: Detector
    prefix: PrefixParams
    scrape: ScrapePlan | None
    """None: no metrics are read, the ledger alone balances."""
    warnings: tuple[str, ...] = ()
    """Deprecated names that were used."""


def build(text: str, registry: Registry) -> PickerConfig:
    """Return the configuration that the YAML or JSON describes; blank text is the default one.

    Raises ConfigError with the path of the fault.
    """
    spec = _read(text if text.strip() else DEFAULT_PICKER_CONFIG)
    for index, gate in enumerate(spec.feature_gates):
        _check_gate(gate, f"featureGates[{index}]")
    plugins = _instances(spec.plugins, registry)
    if len(spec.scheduling_profiles) > 1:
        raise ConfigError("schedulingProfiles", "more than one profile is not supported; keep one")
    profile = _profile(spec, plugins)
    return PickerConfig(
        profile=profile,
        detector=_detector(spec, plugins),
        prefix=_first(plugins.values(), ApproxPrefixCacheProducer).params,
        scrape=_scrape_plan(spec, plugins),
        warnings=tuple(_warnings(spec)),
    )


def _read(text: str) -> EndpointPickerConfig:
    loaded = yaml_text.load(text)
    if not isinstance(loaded, dict):
        raise ConfigError("", "must be a mapping with apiVersion, kind and plugins")
    try:
        return EndpointPickerConfig.model_validate(loaded)
    except ValidationError as error:
        raise from_validation(error) from None


def _check_gate(gate: str, path: str) -> None:
    name, _, value = gate.partition("=")
    if name not in _GATES_OFF:
        raise ConfigError(path, f'unknown feature gate "{name}"; known: {", ".join(sorted(_GATES_OFF))}')
    if value != "false":
        raise ConfigError(path, f'"{name}" cannot be switched on in this version; remove it')


def _instances(specs: tuple[PluginSpec, ...], registry: Registry) -> dict[str, Plugin]:
    plugins: dict[str, Plugin] = {}
    for index, spec in enumerate(specs):
        path = f"plugins[{index}]"
        name = spec.name or spec.type
        if name in plugins:
            raise ConfigError(path + ".name", f'two plugins are named "{name}"; give each its own name')
        kind = registry.find(spec.type, f"{path}.type")
        try:
            params = kind.params_type.model_validate(spec.parameters or {})
        except ValidationError as error:
            raise from_validation(error, f"{path}.parameters") from None
        try:
            plugins[name] = kind(params)
        except Exception as error:  # the plugin may be anybody's
            raise ConfigError(path, f'plugin "{name}" cannot be made: {error}') from error
    return plugins


def _profile(spec: EndpointPickerConfig, plugins: dict[str, Plugin]) -> Profile:
    """Build the one profile; without any, it holds every filter, scorer and picker in the order listed."""
    chosen = spec.scheduling_profiles[0] if spec.scheduling_profiles else _all_in_one(plugins)
    filters: list[FilterFn] = []
    scorers: list[WeightedScorer] = []
    pickers: list[Picker] = []
    needs_prompt = False
    for index, ref in enumerate(chosen.plugins):
        path = f"schedulingProfiles[0].plugins[{index}]"
        plugin = _resolve(ref, plugins, path)
        if not isinstance(plugin, Filter | Scorer | Picker):
            raise ConfigError(path + ".pluginRef", f'"{ref.plugin_ref}" is no filter, scorer or picker')
        if isinstance(plugin, Filter):
            filters.append(plugin.filter)
        if isinstance(plugin, Scorer):
            score = plugin.score if plugin.bounded else clamped(plugin.score)
            weight = 1.0 if ref.weight is None else ref.weight
            scorers.append(WeightedScorer(name=ref.plugin_ref, weight=weight, score=score))
            needs_prompt = needs_prompt or plugin.needs_prompt
        elif ref.weight is not None:
            raise ConfigError(path + ".weight", f'"{ref.plugin_ref}" is no scorer and has no weight')
        if isinstance(plugin, Picker):
            pickers.append(plugin)
    if len(pickers) > 1:
        raise ConfigError("schedulingProfiles[0].plugins", "more than one picker; keep one")
    return Profile(
        name=chosen.name,
        filters=tuple(filters),
        scorers=tuple(scorers),
        pick=pickers[0].pick if pickers else _default_picker(plugins).pick,
        needs_prompt=needs_prompt,
    )


def _all_in_one(plugins: dict[str, Plugin]) -> ProfileSpec:
    refs = [
        {"pluginRef": name}
        for name, plugin in plugins.items()
        if isinstance(plugin, Filter | Scorer | Picker)
    ]
    return ProfileSpec.model_validate({"name": "default", "plugins": refs})


def _default_picker(plugins: dict[str, Plugin]) -> Picker:
    found = next((each for each in plugins.values() if isinstance(each, Picker)), None)
    return found or MaxScorePicker(PickerParams())


def _detector(spec: EndpointPickerConfig, plugins: dict[str, Plugin]) -> Detector:
    ref, path = spec.flow_control.saturation_detector, "flowControl.saturationDetector"
    if ref is None:
        ref, path = spec.saturation_detector, "saturationDetector"
    if ref is None:
        return _first(plugins.values(), UtilizationDetector)
    plugin = _resolve(ref, plugins, path)
    if not isinstance(plugin, Detector):
        raise ConfigError(path + ".pluginRef", f'"{ref.plugin_ref}" is no saturation detector')
    return plugin


def _scrape_plan(spec: EndpointPickerConfig, plugins: dict[str, Plugin]) -> ScrapePlan | None:
    layer = spec.data_layer
    source: MetricsDataSource | None = None
    extractor: CoreMetricsExtractor | None = None
    for index, each in enumerate(layer.sources):
        path = f"dataLayer.sources[{index}]"
        found = _resolve(each, plugins, path)
        if not isinstance(found, MetricsDataSource):
            raise ConfigError(path + ".pluginRef", f'"{each.plugin_ref}" is no {MetricsDataSource.type_name}')
        if source is not None:
            raise ConfigError(path, "more than one metrics source; keep one")
        source = found
        for inner, reader in enumerate(each.extractors):
            inner_path = f"{path}.extractors[{inner}]"
            plugin = _resolve(reader, plugins, inner_path)
            if not isinstance(plugin, CoreMetricsExtractor):
                raise ConfigError(
                    inner_path + ".pluginRef", f'"{reader.plugin_ref}" is no {CoreMetricsExtractor.type_name}'
                )
            extractor = plugin
    if source is None and not layer.inject_defaults:
        return None
    source = source or _first(plugins.values(), MetricsDataSource)
    extractor = extractor or _first(plugins.values(), CoreMetricsExtractor)
    return ScrapePlan(source=source.params, extractor=extractor.params)


def _resolve(ref: PluginRef, plugins: dict[str, Plugin], path: str) -> Plugin:
    found = plugins.get(ref.plugin_ref)
    if found is None:
        listed = ", ".join(sorted(plugins)) or "none"
        raise ConfigError(path + ".pluginRef", f'no plugin is named "{ref.plugin_ref}"; listed: {listed}')
    return found


def _first(plugins: Iterable[Plugin], kind: type[_P]) -> _P:
    """Return the first instance of the class, else one with its defaults."""
    found = next((each for each in plugins if isinstance(each, kind)), None)
    return kind(kind.params_type()) if found is None else found


def _warnings(spec: EndpointPickerConfig) -> Iterable[str]:
    if spec.api_version == OLD_API_VERSION:
        yield f"apiVersion {OLD_API_VERSION} is deprecated; write {API_VERSION}"
    if spec.saturation_detector is not None:
        yield "saturationDetector is deprecated; write flowControl.saturationDetector"
    for each in spec.plugins:
        if each.type in RENAMED:
            yield f"plugin type {each.type} is deprecated; write {RENAMED[each.type]}"
