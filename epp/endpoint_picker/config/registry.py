"""Finds plugin classes by their type string, through the entry-point group `headroom.epp.plugins`."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Final, Self

from endpoint_picker.config.not_offered import NOT_OFFERED, sentence
from endpoint_picker.config_errors import ConfigError
from endpoint_picker.scheduling.plugin import Plugin

GROUP: Final = "headroom.epp.plugins"

#: Old names of types, still accepted with a warning.
RENAMED: Final[Mapping[str, str]] = {
    "by-label-selector": "label-selector-filter",
    "tokenizer": "token-producer",
}

#: Types that are offered under their old names, and what to write in their place.
DEPRECATED: Final[Mapping[str, str]] = {
    "by-label": "write label-selector-filter",
    "disagg-headers-handler": "remove it: disagg-profile-handler writes the headers",
    "pd-profile-handler": "write disagg-profile-handler",
    "precise-prefix-cache-scorer": "write precise-prefix-cache-producer and prefix-cache-scorer",
    "prefill-header-handler": "remove it: disagg-profile-handler writes the header",
}


class Registry:
    """The plugin types that a configuration may name; a class is imported when it is first named."""

    __slots__ = ("_loaders",)

    def __init__(self, loaders: Mapping[str, Callable[[], object]]) -> None:
        self._loaders = dict(loaders)

    @classmethod
    def installed(cls) -> Self:
        """Return what the installed distributions offer. Reads package metadata: call it once."""
        return cls({each.name: each.load for each in entry_points(group=GROUP)})

    @property
    def types(self) -> list[str]:
        """Return the known type strings in alphabetical order."""
        return sorted(self._loaders)

    def find(self, type_name: str, path: str) -> type[Plugin]:
        """Return the class.

        Raises ConfigError for a type that is not offered, with the reason; for an unknown type, naming close
        ones; and for a broken class.
        """
        loader = self._loaders.get(RENAMED.get(type_name, type_name))
        if loader is None and type_name in NOT_OFFERED:
            why = sentence(NOT_OFFERED[type_name])
            raise ConfigError(path, f'plugin type "{type_name}" is not offered in this version: {why}')
        if loader is None:
            raise ConfigError(path, f'unknown plugin type "{type_name}"; {self._instead_of(type_name)}')
        try:
            found = loader()
        except Exception as error:  # the import of a third-party module raises anything
            raise ConfigError(path, f'plugin type "{type_name}" cannot be loaded: {error}') from error
        if not (isinstance(found, type) and issubclass(found, Plugin)):
            raise ConfigError(path, f'plugin type "{type_name}" is not a subclass of {Plugin.__qualname__}')
        return found

    def _instead_of(self, type_name: str) -> str:
        """Return at most three close types, which fit a condition's message; all when none is close."""
        longer = [each for each in self.types if type_name and each.startswith(type_name)]
        close = longer[:3] or get_close_matches(type_name, self.types, n=3)
        if not close:
            return f"known types: {', '.join(self.types)}"
        names = [f'"{each}"' for each in close]
        return f"did you mean {' or '.join(names)}? docs/plugins.md lists all {len(self.types)} types"
