"""Writes a configuration with its defaults filled in and the added plugins listed. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from endpoint_picker.config.schema import API_VERSION, KIND, ProfileSpec
from endpoint_picker.scheduling.plugin import Picker, Plugin, PluginParams
from endpoint_picker.scheduling.scheduler import Scheduling


class Effective:
    """Names the plugins of a configuration, and lists the ones that `build` added."""

    def __init__(self, listed: Mapping[str, Plugin], params: Mapping[str, PluginParams]) -> None:
        self._names = {id(plugin): name for name, plugin in listed.items()}
        self._plugins = [_entry(name, type(listed[name]), params[name]) for name in listed]

    def name(self, plugin: Plugin) -> str:
        """Return the plugin's name; add a plugin that is not listed, with its defaults."""
        if id(plugin) not in self._names:
            self._names[id(plugin)] = self._added(type(plugin))
        return self._names[id(plugin)]

    def _added(self, kind: type[Plugin]) -> str:
        taken = {each.get("name", each["type"]) for each in self._plugins}
        name = kind.type_name
        while name in taken:
            name += "-default"
        self._plugins.append(_entry(name, kind, kind.params_type()))
        return name

    def text_of(
        self,
        scheduling: Scheduling,
        specs: Sequence[ProfileSpec],
        producers: Sequence[Plugin],
        parsers: Sequence[Plugin],
        sources: Sequence[tuple[Plugin, Plugin]],
    ) -> dict[str, Any]:
        """Return the configuration as plain values, ready for YAML."""
        self.name(scheduling.handler)
        for each in producers:
            self.name(each)
        profiles = []
        for spec, profile in zip(specs, scheduling.profiles, strict=True):
            refs: list[dict[str, Any]] = []
            weights = {each.name: each.weight for each in profile.scorers}
            for ref in spec.plugins:
                weight = {"weight": weights[ref.plugin_ref]} if ref.plugin_ref in weights else {}
                refs.append({"pluginRef": ref.plugin_ref, **weight})
            picker = getattr(profile.pick, "__self__", None)
            if isinstance(picker, Picker) and {"pluginRef": self.name(picker)} not in refs:
                refs.append({"pluginRef": self.name(picker)})
            profiles.append({"name": spec.name, "plugins": refs})
        layer: dict[str, Any] = {"injectDefaults": False}
        if sources:
            layer["sources"] = [
                {"pluginRef": self.name(source), "extractors": [{"pluginRef": self.name(extractor)}]}
                for source, extractor in sources
            ]
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "flowControl": {"saturationDetector": {"pluginRef": self.name(scheduling.detector)}},
            "requestHandler": {"parsers": [{"pluginRef": self.name(each)} for each in parsers]},
            "plugins": self._plugins,
            "schedulingProfiles": profiles,
            "dataLayer": layer,
        }


def _entry(name: str, kind: type[Plugin], params: PluginParams) -> dict[str, Any]:
    deprecated = {key for key, field in kind.params_type.model_fields.items() if field.deprecated}
    values = params.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=deprecated)
    entry: dict[str, Any] = {"type": kind.type_name}
    if name != kind.type_name:
        entry["name"] = name
    if values:
        entry["parameters"] = values
    return entry
