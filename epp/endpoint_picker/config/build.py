"""From the text of an EndpointPickerConfig to a frozen configuration. Whatever can fail, fails here."""

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from pydantic import ValidationError

from endpoint_picker import yaml_text
from endpoint_picker.config.picker_config import PickerConfig
from endpoint_picker.config.registry import RENAMED, Registry
from endpoint_picker.config.schema import (
    API_VERSION,
    OLD_API_VERSION,
    EndpointPickerConfig,
    PluginRef,
    PluginSpec,
    ProfileSpec,
)
from endpoint_picker.config.settings_plugins import CoreMetricsExtractor, MetricsDataSource
from endpoint_picker.config_errors import ConfigError, from_validation
from endpoint_picker.datalayer.scrape_plan import ScrapePlan
from endpoint_picker.decision import Hooks
from endpoint_picker.flowcontrol.admission import UtilizationDetector
from endpoint_picker.scheduling.candidates import PREFIX_MATCH
from endpoint_picker.scheduling.handlers.single_profile import SingleProfileHandler
from endpoint_picker.scheduling.pickers.max_score import MaxScorePicker
from endpoint_picker.scheduling.pickers.params import PickerParams
from endpoint_picker.scheduling.plugin import (
    Filter,
    Follower,
    MayWait,
    NoParams,
    Picker,
    Plugin,
    Producer,
    SaturationDetector,
    Scorer,
)
from endpoint_picker.scheduling.producers.approx_prefix_cache import ApproxPrefixCacheProducer, PrefixParams
from endpoint_picker.scheduling.profile import Profile, WeightedScorer, clamped
from endpoint_picker.scheduling.profile_handler import ProfileHandler
from endpoint_picker.scheduling.scheduler import Scheduling
from inference_api.default_picker_config import DEFAULT_PICKER_CONFIG

#: Gates that may be named; a gate that is on must be one that this version acts on, and there is none.
_GATES_OFF: Final = frozenset({"flowControl"})

_TOO_MANY_PROFILES: Final = "more than one profile is not supported; keep one"

_P = TypeVar("_P", bound=Plugin)


def build(text: str, registry: Registry) -> PickerConfig:
    """Return the configuration that the YAML or JSON describes; blank text is the default one.

    Raises ConfigError with the path of the fault.
    """
    spec = _read(text if text.strip() else DEFAULT_PICKER_CONFIG)
    for index, gate in enumerate(spec.feature_gates):
        _check_gate(gate, f"featureGates[{index}]")
    listed = _instances(spec.plugins, registry)
    handler = next((each for each in listed.values() if isinstance(each, ProfileHandler)), None)
    handler = handler or SingleProfileHandler(NoParams())
    if len(spec.scheduling_profiles) > handler.most_profiles:
        raise ConfigError("schedulingProfiles", _TOO_MANY_PROFILES)
    providers = _providers(listed)
    running: list[Producer] = []
    profiles = tuple(
        _profile(profile, f"schedulingProfiles[{index}].plugins", listed, providers, running)
        for index, profile in enumerate(spec.scheduling_profiles or (_all_in_one(listed),))
    )
    detector = _detector(spec, listed)
    others = [each for each in listed.values() if not isinstance(each, Producer)]
    attached = _distinct([*others, *providers.values(), detector, handler])
    # A producer whose outputs are not consumed does not run, so that it has nothing to follow.
    idle = {id(each) for each in providers.values()} - {id(each) for each in running}
    following = [each for each in attached if isinstance(each, Follower) and id(each) not in idle]
    scheduling = Scheduling(
        profiles=profiles,
        handler=handler,
        detector=detector,
        plugins=attached,
        waiters=tuple(each for each in attached if isinstance(each, MayWait)),
        decided=tuple(each.decided for each in following if _overrides(each, "decided")),
        hooks=Hooks(
            first_byte=tuple(each.first_byte for each in following if _overrides(each, "first_byte")),
            ended=tuple(each.ended for each in following if _overrides(each, "ended")),
        ),
    )
    return PickerConfig(
        scheduling=scheduling, scrape=_scrape_plan(spec, listed), warnings=tuple(_warnings(spec))
    )


def _distinct(plugins: Iterable[Plugin]) -> tuple[Plugin, ...]:
    return tuple({id(each): each for each in plugins}.values())


def _overrides(follower: Follower, hook: str) -> bool:
    return getattr(type(follower), hook) is not getattr(Follower, hook)


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
        except Exception as error:  # third-party plugins raise anything
            raise ConfigError(path, f'plugin "{name}" cannot be made: {error}') from error
    return plugins


def _providers(listed: Mapping[str, Plugin]) -> dict[str, Producer]:
    """Return who makes each output: the first producer listed, else the default one that there is for it."""
    providers: dict[str, Producer] = {}
    for plugin in listed.values():
        if isinstance(plugin, Producer):
            for output in sorted(plugin.produces):
                providers.setdefault(output, plugin)
    if PREFIX_MATCH not in providers:
        providers[PREFIX_MATCH] = ApproxPrefixCacheProducer(PrefixParams())
    return providers


def _profile(
    spec: ProfileSpec,
    where: str,
    plugins: dict[str, Plugin],
    providers: Mapping[str, Producer],
    running: list[Producer],
) -> Profile:
    """Build one profile, and add the producers that it runs to `running`."""
    filters: list[Filter] = []
    scorers: list[WeightedScorer] = []
    pickers: list[Picker] = []
    producers: list[Producer] = []
    for index, ref in enumerate(spec.plugins):
        path = f"{where}[{index}]"
        plugin = _resolve(ref, plugins, path)
        if not isinstance(plugin, Filter | Scorer | Picker):
            raise ConfigError(path + ".pluginRef", f'"{ref.plugin_ref}" is no filter, scorer or picker')
        _add_producers(plugin, f'"{ref.plugin_ref}"', path + ".pluginRef", providers, producers)
        if isinstance(plugin, Filter):
            filters.append(plugin)
        if isinstance(plugin, Scorer):
            score = plugin.score if plugin.bounded else clamped(plugin.score)
            weight = 1.0 if ref.weight is None else ref.weight
            scorers.append(WeightedScorer(name=ref.plugin_ref, weight=weight, score=score))
        elif ref.weight is not None:
            raise ConfigError(path + ".weight", f'"{ref.plugin_ref}" is no scorer and has no weight')
        if isinstance(plugin, Picker):
            pickers.append(plugin)
    if len(pickers) > 1:
        raise ConfigError(where, "more than one picker; keep one")
    if not pickers:
        pickers.append(_default_picker(plugins))
        _add_producers(pickers[0], f'"{pickers[0].type_name}"', where, providers, producers)
    running.extend(producers)
    early = next((at for at, each in enumerate(filters) if each.consumes), len(filters))
    return Profile(
        name=spec.name,
        filters=tuple(each.filter for each in filters[:early]),
        late_filters=tuple(each.filter for each in filters[early:]),
        producers=tuple(each.produce for each in producers),
        scorers=tuple(scorers),
        pick=pickers[0].pick,
    )


def _add_producers(
    consumer: Plugin,
    name: str,
    path: str,
    providers: Mapping[str, Producer],
    producers: list[Producer],
    above: tuple[Plugin, ...] = (),
) -> None:
    """Add what makes the consumer's inputs to `producers`, each after those that it consumes from itself."""
    for wanted in sorted(consumer.consumes):
        producer = providers.get(wanted)
        if producer is None:
            raise ConfigError(path, f"{name} consumes {wanted}, which no plugin produces; add its producer")
        if producer is consumer or producer in above:
            raise ConfigError(path, f"{name} consumes {wanted}, whose producer waits for {name} in turn")
        if producer not in producers:
            _add_producers(
                producer, f'"{producer.type_name}"', path, providers, producers, (*above, consumer)
            )
            producers.append(producer)


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


def _detector(spec: EndpointPickerConfig, plugins: dict[str, Plugin]) -> SaturationDetector:
    ref, path = spec.flow_control.saturation_detector, "flowControl.saturationDetector"
    if ref is None:
        ref, path = spec.saturation_detector, "saturationDetector"
    if ref is None:
        return _first(plugins.values(), UtilizationDetector)
    plugin = _resolve(ref, plugins, path)
    if not isinstance(plugin, SaturationDetector):
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
    return ScrapePlan(
        path=source.params.path,
        engine_label_key=extractor.params.engine_label_key,
        default_engine=extractor.params.default_engine,
        engines=extractor.params.engines,
    )


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
