"""Builds a frozen configuration from the text of an EndpointPickerConfig. All its faults show here."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from endpoint_picker import yaml_text
from endpoint_picker.config.effective import Effective
from endpoint_picker.config.flow_section import (
    FLOW_CONTROL_GATE,
    flow_settings,
    flow_warnings,
    gate_is_on,
    with_flow,
)
from endpoint_picker.config.not_offered import GATES_NOT_OFFERED, KEYS_NOT_OFFERED, sentence
from endpoint_picker.config.parsers import READING, OpenAiParser, Parser, PassthroughParser
from endpoint_picker.config.picker_config import PickerConfig
from endpoint_picker.config.registry import DEPRECATED, RENAMED, Registry
from endpoint_picker.config.schema import (
    API_VERSION,
    OLD_API_VERSION,
    EndpointPickerConfig,
    PluginRef,
    PluginSpec,
    ProfileSpec,
)
from endpoint_picker.config.settings_plugins import (
    GPU_UTILIZATION,
    CoreMetricsExtractor,
    DcgmDataSource,
    DcgmExtractor,
    EndpointNotificationSource,
    MetricsDataSource,
    SourceParams,
)
from endpoint_picker.config_errors import ConfigError, ConsequentError, Faults, from_validation, joined
from endpoint_picker.datalayer.scrape_plan import ScrapePlan
from endpoint_picker.decision import BodyReading, Hooks
from endpoint_picker.flowcontrol.policies import FairnessPolicy, OrderingPolicy, UsageLimitPolicy
from endpoint_picker.flowcontrol.utilization_detector import UtilizationDetector
from endpoint_picker.scheduling.candidates import LATENCY_PREDICTION, PREFIX_MATCH, TOKENIZED_PROMPT
from endpoint_picker.scheduling.decider import Decider
from endpoint_picker.scheduling.filters.topology_affinity import TopologyAffinityFilter
from endpoint_picker.scheduling.handlers.single_profile import SingleProfileHandler
from endpoint_picker.scheduling.pickers.max_score import MaxScorePicker
from endpoint_picker.scheduling.pickers.params import PickerParams
from endpoint_picker.scheduling.plugin import (
    Admitter,
    Filter,
    Follower,
    LateAdmitter,
    MayWait,
    NoParams,
    Picker,
    Plugin,
    PluginParams,
    PrefixConsumerParams,
    Producer,
    RequestReader,
    SaturationDetector,
    Scorer,
    Screener,
)
from endpoint_picker.scheduling.producers.approx_prefix_cache import ApproxPrefixCacheProducer, PrefixParams
from endpoint_picker.scheduling.producers.inflight_load import InflightLoadProducer
from endpoint_picker.scheduling.producers.predicted_latency import (
    PredictedLatencyParams,
    PredictedLatencyProducer,
)
from endpoint_picker.scheduling.producers.token import TokenParams, TokenProducer
from endpoint_picker.scheduling.profile import Profile, WeightedScorer, clamped
from endpoint_picker.scheduling.profile_handler import ProfileHandler
from endpoint_picker.scheduling.scheduler import Scheduling
from endpoint_picker.scheduling.scorers.topology_affinity import TopologyAffinityScorer
from endpoint_picker.scheduling.topology import TopologyExtractor
from inference_api.default_picker_config import DEFAULT_PICKER_CONFIG

#: Known feature gates, each with the only value that this version supports; None: both.
_GATES: Final[Mapping[str, bool | None]] = {
    FLOW_CONTROL_GATE: None,
    "haPopulateNonLeaderDatastore": True,
}

_INDEX: Final = re.compile(r"\[\d+\]")

_P = TypeVar("_P", bound=Plugin)


def build(text: str, registry: Registry) -> PickerConfig:
    """Return the configuration that the YAML or JSON describes; blank text is the default one.

    Raises ConfigError with the path of each fault.
    """
    spec = _read(text if text.strip() else DEFAULT_PICKER_CONFIG)
    faults = Faults()
    for index, gate in enumerate(spec.feature_gates):
        with faults.noted():
            _check_gate(gate, f"featureGates[{index}]")
    listed = Instances(spec.plugins, registry, faults)
    handler = SingleProfileHandler(NoParams()) if listed.broken else _handler(listed, faults)
    specs = spec.scheduling_profiles or (_all_in_one(listed),)
    with faults.noted():
        _check_profiles(specs, handler, listed)
    _take_named(handler, listed, faults)
    providers = _providers(listed, faults)
    running: list[Producer] = []
    made: list[Profile] = []
    for index, profile in enumerate(specs):
        where = f"schedulingProfiles[{index}].plugins"
        made.append(
            _profile(profile, where, listed, handler, providers, running, faults, is_primary=not index)
        )
    profiles = tuple(made)
    detector: SaturationDetector = UtilizationDetector(UtilizationDetector.params_type())
    with faults.noted():
        detector = _detector(spec, listed)
    with faults.noted():
        flow = flow_settings(spec.flow_control, listed, detector, faults)
    scrape: ScrapePlan | None = None
    exporter: ScrapePlan | None = None
    sources: list[tuple[Plugin, Plugin]] = []
    with faults.noted():
        scrape, exporter, sources = _data_layer(spec, listed)
    parsers: Sequence[Parser] = ()
    with faults.noted():
        parsers = _parsers(spec, listed)
    if not faults:
        _check_references(listed, [each.name for each in specs], faults)
    if not faults:
        listed.note_unused(faults)
        listed.note_unread_headroom(profiles, faults)
    faults.raise_any()
    others = [each for each in listed.values() if not isinstance(each, Producer)]
    is_queueing = gate_is_on(spec.feature_gates)
    policies = flow.policies if is_queueing else ()
    producing = [each for each in providers.values() if each.attaches_when_idle or each in running]
    attached = _distinct([*others, *producing, detector, handler, *policies])
    # A producer whose outputs are not consumed does not run, so its follower methods are left out, too.
    idle = {id(each) for each in providers.values()} - {id(each) for each in running}
    following = [
        each
        for each in attached
        if isinstance(each, Follower) and (each.follows_when_idle or id(each) not in idle)
    ]
    scheduling = Scheduling(
        profiles=profiles,
        handler=handler,
        detector=detector,
        plugins=attached,
        readers=tuple(
            each.read for each in attached if isinstance(each, RequestReader) and _is_read(each, listed)
        ),
        screeners=tuple(each.screen for each in attached if isinstance(each, Screener)),
        admitters=tuple(each.refusal for each in attached if isinstance(each, Admitter)),
        late_admitters=tuple(each.refusal for each in attached if isinstance(each, LateAdmitter)),
        waiters=tuple(each for each in attached if isinstance(each, MayWait)),
        decided=tuple(each.decided for each in following if _overrides(each, "decided")),
        hooks=Hooks(
            first_byte=tuple(each.first_byte for each in following if _overrides(each, "first_byte")),
            ended=tuple(each.ended for each in following if _overrides(each, "ended")),
            response_headers=tuple(
                each.response_headers for each in following if _overrides(each, "response_headers")
            ),
            response_complete=tuple(
                each.response_complete for each in following if _overrides(each, "response_complete")
            ),
        ),
    )
    warnings = (*_warnings(spec), *listed.warnings, *_idle_producers(listed, running), *_idle_readers(listed))
    warnings = (*warnings, *flow_warnings(spec, is_on=is_queueing))
    names = Effective(listed, listed.params)
    effective = names.text_of(scheduling, specs, running, parsers, sources)
    if is_queueing:
        effective = with_flow(effective, flow, names)
    return PickerConfig(
        scheduling=scheduling,
        flow=flow if is_queueing else None,
        scrape=scrape,
        exporter=exporter,
        reading=_reading(parsers, [*others, *running, detector, handler]),
        warnings=warnings,
        effective=effective,
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
        raise _with_reasons(from_validation(error)) from None


def _with_reasons(error: ConfigError) -> ConfigError:
    """Return the error with the reason at each key that is known and not offered."""
    faults = []
    for fault in error.faults:
        path = _INDEX.sub("", fault.path)
        why = next((why for key, why in KEYS_NOT_OFFERED.items() if f"{path}.".startswith(f"{key}.")), "")
        text = f"not offered in this version: {sentence(why)}; remove it"
        faults.append(ConfigError(fault.path, text) if why else fault)
    return joined(faults)


def _check_gate(gate: str, path: str) -> None:
    name, _, value = gate.partition("=")
    if name not in _GATES:
        raise ConfigError(path, f'unknown feature gate "{name}"; known: {", ".join(sorted(_GATES))}')
    if value not in ("", "true", "false"):
        raise ConfigError(path, f'"{value}" is neither true nor false')
    if _GATES[name] is not None and (value != "false") != _GATES[name]:
        way = "off" if _GATES[name] else "on"
        why = sentence(GATES_NOT_OFFERED[name])
        raise ConfigError(path, f'"{name}" cannot be switched {way} in this version: {why}; remove it')


def _handler(listed: "Instances", faults: Faults) -> ProfileHandler:
    found = [(name, each) for name, each in listed.items() if isinstance(each, ProfileHandler)]
    with faults.noted():
        if len(found) > 1:
            raise ConfigError(listed.path_of(found[1][0]), "a second profile handler; keep one")
    if not found:
        return SingleProfileHandler(NoParams())
    listed.used.add(found[0][0])
    return found[0][1]


def _take_named(handler: ProfileHandler, listed: "Instances", faults: Faults) -> None:
    """Give the handler the plugins that its parameters name."""
    for parameter, name in handler.refers_to.items():
        with faults.noted():
            handler_name = next(each for each, plugin in listed.items() if plugin is handler)
            path = f"{listed.path_of(handler_name)}.parameters.{parameter}"
            found = listed.get(name)
            if found is None and name in listed.broken:
                raise ConsequentError(path, f'"{name}" could not be made')
            if found is None:
                names = ", ".join(sorted(listed))
                raise ConfigError(path, f'no plugin is named "{name}"; listed: {names}')
            listed.used.add(name)
            fault = handler.take(parameter, found)
            if fault:
                raise ConfigError(path, fault)


def _check_profiles(specs: Sequence[ProfileSpec], handler: ProfileHandler, listed: "Instances") -> None:
    names = [each.name for each in specs]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ConfigError(f"schedulingProfiles[{index}].name", f'two profiles are named "{name}"')
    if listed.broken:
        return  # the handler may be one of the plugins that could not be made
    fault = handler.fault_of(names)
    if fault:
        raise ConfigError("schedulingProfiles", f"{fault}; add a handler that runs them, or keep one")


def _check_references(listed: "Instances", profiles: Sequence[str], faults: Faults) -> None:
    """Note a fault for each plugin that lacks another one."""
    added = CoreMetricsExtractor(CoreMetricsExtractor.params_type())
    every = {CoreMetricsExtractor.type_name: added, **listed}
    for name, each in listed.items():
        with faults.noted():
            fault = each.fault_among(every, profiles)
            if fault:
                raise ConfigError(f"{listed.path_of(name)}.parameters", fault)


def _idle_producers(listed: "Instances", running: Sequence[Producer]) -> Iterable[str]:
    for name, each in listed.items():
        if isinstance(each, Producer) and each not in running:
            does = (
                "only follows requests"
                if isinstance(each, Follower) and each.follows_when_idle
                else "does not run"
            )
            yield f'producer "{name}" {does}: nothing consumes what it makes'


def _is_read(reader: RequestReader, listed: Mapping[str, Plugin]) -> bool:
    return any(reader.writes in each.request_attributes for each in listed.values())


def _idle_readers(listed: Mapping[str, Plugin]) -> Iterable[str]:
    """Yield a warning for each plugin that finds facts which no other plugin reads."""
    near = any(isinstance(each, TopologyAffinityFilter | TopologyAffinityScorer) for each in listed.values())
    for name, each in listed.items():
        if isinstance(each, RequestReader) and not _is_read(each, listed):
            yield f'"{name}" does nothing: no plugin reads the attribute {each.writes}'
        if isinstance(each, InflightLoadProducer) and not each.adds_output:
            yield f'"{name}" does nothing: the ledger is always on; set addEstimatedOutputTokens'
        if isinstance(each, EndpointNotificationSource):
            yield f'"{name}" does nothing: the picker follows endpoints without being asked to'
        if isinstance(each, TopologyExtractor) and not near:
            yield f'"{name}" does nothing: no plugin goes by topology'


class Instances(dict[str, Plugin]):
    """The listed plugins by name, in order; notes the used ones and those that could not be made."""

    def __init__(self, specs: Sequence[PluginSpec], registry: Registry, faults: Faults) -> None:
        super().__init__()
        self.broken: set[str] = set()
        self.used: set[str] = set()
        """Names of plugins that the configuration refers to, or that take effect by being listed."""
        self.warnings: list[str] = []
        self.params: dict[str, PluginParams] = {}
        self._places: dict[str, int] = {}
        for index, spec in enumerate(specs):
            name = spec.name or spec.type
            self.broken.add(name)
            with faults.noted():
                if name in self:
                    fault = f'two plugins are named "{name}"; give each its own name'
                    raise ConfigError(f"plugins[{index}].name", fault)
                self._places[name] = index
                self[name] = self._made(spec, name, f"plugins[{index}]", registry)
                self.broken.discard(name)

    def _made(self, spec: PluginSpec, name: str, path: str, registry: Registry) -> Plugin:
        kind = registry.find(spec.type, f"{path}.type")
        given = spec.parameters or {}
        try:
            params = kind.params_type.model_validate(given)
        except ValidationError as error:
            raise from_validation(error, f"{path}.parameters") from None
        self.warnings += _deprecated(kind.params_type, given, f"{path}.parameters")
        self.params[name] = params
        try:
            return kind(params)
        except Exception as error:  # third-party plugins raise anything
            raise ConfigError(path, f'plugin "{name}" cannot be made: {error}') from error

    def path_of(self, name: str) -> str:
        """Return the place of a plugin in the configuration."""
        return f"plugins[{self._places[name]}]"

    def first(self, kind: type[_P]) -> _P:
        """Return the first listed instance of the class and note it as used; without one, make a default."""
        for name, each in self.items():
            if isinstance(each, kind):
                self.used.add(name)
                return each
        return kind(kind.params_type())

    def note_unused(self, faults: Faults) -> None:
        """Note a fault for each plugin that would do nothing. An idle producer is only a warning."""
        for name, each in self.items():
            with faults.noted():
                if name not in self.used and isinstance(each, _USED_BY_REFERENCE):
                    fault = f'"{name}" is used nowhere; refer to it, or remove it'
                    raise ConfigError(self.path_of(name), fault)

    def note_unread_headroom(self, profiles: Sequence[Profile], faults: Faults) -> None:
        """Note a fault for each detector with a headroom, which only filters read, that filters nowhere."""
        filtering = {id(getattr(each, "__self__", None)) for profile in profiles for each in profile.filters}
        for name, each in self.items():
            if isinstance(each, SaturationDetector) and id(each) not in filtering:
                with faults.noted():
                    if getattr(self.params[name], "headroom", 0.0):
                        fault = f'only the filter reads it; refer to "{name}" in a profile, or remove it'
                        raise ConfigError(f"{self.path_of(name)}.parameters.headroom", fault)


def _deprecated(model: type[BaseModel], given: Mapping[str, Any], path: str) -> Iterable[str]:
    """Yield a warning for each deprecated parameter that is given, those of nested sections included."""
    for field in model.model_fields.values():
        value = given.get(str(field.alias))
        if value is None:
            continue
        if field.deprecated:
            yield f"{path}.{field.alias} is deprecated; {field.deprecated}"
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel) and isinstance(value, dict):
                yield from _deprecated(inner, value, f"{path}.{field.alias}")


#: Plugins that do nothing unless a part of the configuration refers to them.
_USED_BY_REFERENCE: Final = (
    Filter,
    Scorer,
    Picker,
    Decider,
    SaturationDetector,
    FairnessPolicy,
    OrderingPolicy,
    UsageLimitPolicy,
    MetricsDataSource,
    CoreMetricsExtractor,
    DcgmDataSource,
    DcgmExtractor,
    Parser,
)


def _providers(listed: "Instances", faults: Faults) -> dict[str, Producer]:
    """Return the producer of each output: the first one listed, or the one that a consumer names.

    PREFIX_MATCH and TOKENIZED_PROMPT have default producers, and LATENCY_PREDICTION where it is read.
    """
    providers: dict[str, Producer] = {}
    for plugin in listed.values():
        if isinstance(plugin, Producer):
            for output in sorted(plugin.produces):
                providers.setdefault(output, plugin)
    with faults.noted():
        named = _named_matcher(listed)
        if named is not None:
            providers[PREFIX_MATCH] = named
    if PREFIX_MATCH not in providers:
        providers[PREFIX_MATCH] = ApproxPrefixCacheProducer(PrefixParams())
    if TOKENIZED_PROMPT not in providers:
        providers[TOKENIZED_PROMPT] = TokenProducer(TokenParams())
    # It follows every request, so it is added only where it is read.
    if LATENCY_PREDICTION not in providers and any(
        LATENCY_PREDICTION in each.inputs for each in listed.values()
    ):
        providers[LATENCY_PREDICTION] = PredictedLatencyProducer(PredictedLatencyParams())
    return providers


def _named_matcher(listed: "Instances") -> Producer | None:
    """Return the producer of PREFIX_MATCH that plugins name; None when none names one that is listed."""
    chosen: Producer | None = None
    for name, params in listed.params.items():
        if not isinstance(params, PrefixConsumerParams) or not params.prefix_match_info_producer_name:
            continue
        wanted = params.prefix_match_info_producer_name
        path = f"{listed.path_of(name)}.parameters.prefixMatchInfoProducerName"
        found = listed.get(wanted)
        if found is None and wanted in listed.broken:
            raise ConsequentError(path, f'"{wanted}" could not be made')
        if found is None and wanted == ApproxPrefixCacheProducer.type_name:
            found = ApproxPrefixCacheProducer(PrefixParams())
        if not isinstance(found, Producer) or PREFIX_MATCH not in found.produces:
            raise ConfigError(path, f'no listed producer of prefix matches is named "{wanted}"')
        if chosen is not None and (found is not chosen and type(found) is not type(chosen)):
            raise ConfigError(path, "another plugin names another producer; one is used for all")
        chosen = found
    return chosen


def _profile(
    spec: ProfileSpec,
    where: str,
    plugins: Instances,
    handler: ProfileHandler,
    providers: Mapping[str, Producer],
    running: list[Producer],
    faults: Faults,
    *,
    is_primary: bool,
) -> Profile:
    """Build one profile, and add the producers that it runs to `running`."""
    filters: list[Filter] = []
    named: list[str] = []
    scorers: list[WeightedScorer] = []
    pickers: list[Picker] = []
    producers: list[Producer] = []
    for index, ref in enumerate(spec.plugins):
        path = f"{where}[{index}]"
        with faults.noted():
            plugin = _resolve(ref, plugins, path)
            if any(ref.plugin_ref == before.plugin_ref for before in spec.plugins[:index]):
                raise ConfigError(path + ".pluginRef", f'"{ref.plugin_ref}" is named twice; keep one')
            if not isinstance(plugin, Filter | Scorer | Picker):
                raise ConfigError(path + ".pluginRef", f'"{ref.plugin_ref}" is no filter, scorer or picker')
            _add_producers(plugin, f'"{ref.plugin_ref}"', path + ".pluginRef", providers, producers)
            if isinstance(plugin, Producer) and plugin not in producers:
                producers.append(plugin)
            if isinstance(plugin, Filter):
                filters.append(plugin)
                named.append(ref.plugin_ref)
            if isinstance(plugin, Scorer):
                score = plugin.score if plugin.bounded else clamped(plugin.score)
                weight = 1.0 if ref.weight is None else ref.weight
                scorers.append(WeightedScorer(name=ref.plugin_ref, weight=weight, score=score))
            elif ref.weight is not None:
                raise ConfigError(path + ".weight", f'"{ref.plugin_ref}" is no scorer and has no weight')
            if isinstance(plugin, Picker):
                pickers.append(plugin)
    with faults.noted():
        if len(pickers) > 1:
            raise ConfigError(where, "more than one picker; keep one")
    if not pickers:
        pickers.append(_default_picker(plugins))
        with faults.noted():
            _add_producers(pickers[0], f'"{pickers[0].type_name}"', where, providers, producers)
    for reader in handler.readers_of(spec.name):
        with faults.noted():
            _add_producers(reader, f'"{reader.type_name}"', where, providers, producers)
    for name, each in plugins.items():
        if is_primary and isinstance(each, LateAdmitter):
            with faults.noted():
                _add_producers(each, f'"{name}"', plugins.path_of(name), providers, producers)
    running.extend(producers)
    early = next((at for at, each in enumerate(filters) if each.inputs), len(filters))
    return Profile(
        name=spec.name,
        filters=tuple(each.filter for each in filters[:early]),
        late_filters=tuple(each.filter for each in filters[early:]),
        producers=tuple(each.produce for each in producers),
        scorers=tuple(scorers),
        pick=pickers[0].pick,
        filter_names=tuple(named),
        picker_name=pickers[0].type_name,
    )


def _add_producers(
    consumer: Plugin,
    name: str,
    path: str,
    providers: Mapping[str, Producer],
    producers: list[Producer],
    above: tuple[Plugin, ...] = (),
) -> None:
    """Add the producers of the consumer's inputs, each after the producers that it consumes from."""
    for wanted in sorted(consumer.inputs):
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


def _all_in_one(plugins: Instances) -> ProfileSpec:
    refs = [
        {"pluginRef": name}
        for name, plugin in plugins.items()
        if isinstance(plugin, Filter | Scorer | Picker)
    ]
    return ProfileSpec.model_validate({"name": "default", "plugins": refs})


def _default_picker(plugins: Instances) -> Picker:
    for name, each in plugins.items():
        if isinstance(each, Picker):
            plugins.used.add(name)
            return each
    return MaxScorePicker(PickerParams())


def _detector(spec: EndpointPickerConfig, plugins: Instances) -> SaturationDetector:
    ref, path = spec.flow_control.saturation_detector, "flowControl.saturationDetector"
    if ref is None:
        ref, path = spec.saturation_detector, "saturationDetector"
    elif spec.saturation_detector is not None:
        raise ConfigError("saturationDetector", "flowControl.saturationDetector is set too; remove this one")
    if ref is None:
        return plugins.first(UtilizationDetector)
    plugin = _resolve(ref, plugins, path)
    if not isinstance(plugin, SaturationDetector):
        raise ConfigError(path + ".pluginRef", f'"{ref.plugin_ref}" is no saturation detector')
    return plugin


def _parsers(spec: EndpointPickerConfig, plugins: Instances) -> Sequence[Parser]:
    refs, where = spec.request_handler.parsers, "requestHandler.parsers"
    if spec.parser is not None:
        if refs:
            raise ConfigError("parser", "requestHandler.parsers is set too; remove this one")
        refs = (spec.parser,)
    found: list[Parser] = []
    for index, ref in enumerate(refs):
        path = "parser" if spec.parser is not None else f"{where}[{index}]"
        plugin = _resolve(ref, plugins, path)
        if not isinstance(plugin, Parser):
            raise ConfigError(path + ".pluginRef", f'"{ref.plugin_ref}" is no parser')
        if any(type(each) is type(plugin) for each in found):
            raise ConfigError(path, f"a second {plugin.type_name} would do nothing; remove it")
        if any(isinstance(each, PassthroughParser) for each in found):
            raise ConfigError(path, f"{PassthroughParser.type_name} leaves it no request; list that one last")
        found.append(plugin)
    return found or [kind(NoParams()) for kind in READING]


def _reading(parsers: Sequence[Parser], running: Iterable[Plugin]) -> BodyReading:
    """Return which bodies are read; prompts are laid out if a plugin that runs reads them."""
    kinds = {type(each) for each in parsers}
    return BodyReading(
        parsers=frozenset(each.type_name for each in kinds & set(READING)),
        others=OpenAiParser in kinds and PassthroughParser not in kinds,
        prompt=any(each.reads_prompt for each in running),
    )


def _data_layer(
    spec: EndpointPickerConfig, plugins: Instances
) -> tuple[ScrapePlan | None, ScrapePlan | None, list[tuple[Plugin, Plugin]]]:
    """Return how servers and how exporters are scraped, and each source with its extractor."""
    layer = spec.data_layer
    pairs: list[tuple[Plugin, Plugin]] = []
    for index, each in enumerate(layer.sources):
        path = f"dataLayer.sources[{index}]"
        source = _resolve(each, plugins, path)
        if isinstance(source, EndpointNotificationSource):
            for inner, reader in enumerate(each.extractors):
                _resolve(reader, plugins, f"{path}.extractors[{inner}]")
            continue
        kind = _EXTRACTORS.get(type(source))
        if kind is None:
            known = " or ".join(source.type_name for source in _EXTRACTORS)
            raise ConfigError(path + ".pluginRef", f'"{each.plugin_ref}" is no {known}')
        if any(type(source) is type(before) for before, _ in pairs):
            raise ConfigError(path, f"more than one {source.type_name}; keep one")
        extractor: Plugin | None = None
        for inner, reader in enumerate(each.extractors):
            inner_path = f"{path}.extractors[{inner}]"
            plugin = _resolve(reader, plugins, inner_path)
            if not isinstance(plugin, kind):
                fault = f'"{reader.plugin_ref}" is no {kind.type_name}'
                raise ConfigError(inner_path + ".pluginRef", fault)
            if extractor is not None:
                raise ConfigError(inner_path, f"more than one {kind.type_name}; keep one")
            extractor = plugin
        pairs.append((source, extractor or plugins.first(kind)))
    if layer.inject_defaults and not any(isinstance(source, MetricsDataSource) for source, _ in pairs):
        pairs.insert(0, (plugins.first(MetricsDataSource), plugins.first(CoreMetricsExtractor)))
    scrape: ScrapePlan | None = None
    exporter: ScrapePlan | None = None
    for source, extractor in pairs:
        name = next((name for name, each in plugins.items() if each is extractor), extractor.type_name)
        if isinstance(source, MetricsDataSource) and isinstance(extractor, CoreMetricsExtractor):
            engines = extractor.params.engines
            if not any(each.reads_adapters for each in plugins.values()):
                engines = {each: replace(engine, lora=None) for each, engine in engines.items()}
            scrape = _plan(
                source.params,
                extractor=name,
                engine_label_key=extractor.params.engine_label_key,
                default_engine=extractor.params.default_engine,
                engines=engines,
                hit_rate=extractor.params.cache_hit_rate,
            )
        elif isinstance(source, DcgmDataSource):
            exporter = _plan(
                source.params,
                extractor=name,
                largest=GPU_UTILIZATION,
                at_node=source.params.use_node_address,
            )
    return scrape, exporter, pairs


#: Type of a source -> type of the extractor that reads its pages.
_EXTRACTORS: Final[Mapping[type[Plugin], type[Plugin]]] = {
    MetricsDataSource: CoreMetricsExtractor,
    DcgmDataSource: DcgmExtractor,
}


def _plan(source: SourceParams, **extractor: Any) -> ScrapePlan:
    return ScrapePlan(
        path=source.path,
        port=source.port or 0,
        uses_tls=source.scheme == "https",
        insecure_skip_verify=source.insecure_skip_verify,
        ca_cert_path=source.ca_cert_path,
        client_cert_path=source.client_cert_path,
        client_key_path=source.client_key_path,
        server_name=source.server_name,
        bearer_token_file=source.bearer_token_file,
        interval=source.interval or 0.0,
        **extractor,
    )


def _resolve(ref: PluginRef, plugins: Instances, path: str) -> Plugin:
    found = plugins.get(ref.plugin_ref)
    if found is None:
        if ref.plugin_ref in plugins.broken:
            raise ConsequentError(path + ".pluginRef", f'"{ref.plugin_ref}" could not be made')
        listed = ", ".join(sorted(plugins)) or "none"
        raise ConfigError(path + ".pluginRef", f'no plugin is named "{ref.plugin_ref}"; listed: {listed}')
    plugins.used.add(ref.plugin_ref)
    return found


def _warnings(spec: EndpointPickerConfig) -> Iterable[str]:
    if spec.api_version == OLD_API_VERSION:
        yield f"apiVersion {OLD_API_VERSION} is deprecated; write {API_VERSION}"
    if spec.saturation_detector is not None:
        yield "saturationDetector is deprecated; write flowControl.saturationDetector"
    if spec.parser is not None:
        yield "parser is deprecated; write requestHandler.parsers"
    for each in spec.plugins:
        if each.type in RENAMED:
            yield f"plugin type {each.type} is deprecated; write {RENAMED[each.type]}"
        if each.type in DEPRECATED:
            yield f"plugin type {each.type} is deprecated; {DEPRECATED[each.type]}"
