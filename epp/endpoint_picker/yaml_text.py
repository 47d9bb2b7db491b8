"""Reads YAML that a user wrote, of bounded size; every fault in it is a ConfigError. Pure."""

import re
from collections.abc import Iterable
from typing import Final

import yaml
from typing_extensions import override

from endpoint_picker.config_errors import ConfigError

#: Longest text: a ConfigMap holds at most 1 MiB.
MAX_BYTES: Final = 1 << 20

#: Deepest nesting that is read. PyYAML takes several frames a level.
MAX_DEPTH: Final = 64

_PART: Final = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def load(text: str) -> object:
    """Return the values in YAML or JSON; None for blank text. Raises ConfigError, with the line if known."""
    if len(text) > MAX_BYTES:
        raise ConfigError("", f"longer than {MAX_BYTES} bytes")
    try:
        node = _node_of(text)
        loader = yaml.SafeLoader("")
        try:
            return None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except ConfigError:
        raise
    except Exception as error:  # PyYAML's constructors raise ValueError and others on a bad value
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise ConfigError("", f"not YAML{where}: {getattr(error, 'problem', None) or 'malformed'}") from error


class _Loader(yaml.SafeLoader):
    """Composes nodes; refuses deep nesting, and a key that a mapping has twice."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._checked: set[int] = set()
        """Identities of the mappings that were looked at; an alias leads to the same one again."""

    @override
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            line = parent.start_mark.line + 1 if parent is not None else 1
            raise ConfigError("", f"nested more than {MAX_DEPTH} deep at line {line}")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(node, yaml.MappingNode) and id(node) not in self._checked:
            self._checked.add(id(node))
            _refuse_second_keys(node)
        return node


def _refuse_second_keys(node: yaml.MappingNode) -> None:
    seen: set[tuple[str, str]] = set()
    for key, _value in node.value:
        if isinstance(key, yaml.ScalarNode):
            if (key.tag, key.value) in seen:
                line = key.start_mark.line + 1
                text = f'"{key.value[:64]}" a second time at line {line}; remove one of the two'
                raise ConfigError("", text)
            seen.add((key.tag, key.value))


def _node_of(text: str) -> yaml.Node | None:
    loader = _Loader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def lines_of(text: str, paths: Iterable[str]) -> list[int]:
    """Return for each path the line, from 1, of the deepest part of "a[0].b" that is in the YAML; 0: none."""
    try:
        node = _node_of(text)
    except (yaml.YAMLError, ConfigError, ValueError):
        node = None
    return [_line_in(node, path) for path in paths]


def _line_in(node: yaml.Node | None, path: str) -> int:
    line = 0
    for index, key in _PART.findall(path):
        if isinstance(node, yaml.MappingNode):
            pairs = [each for each in node.value if key and each[0].value == key]
            if not pairs:
                break
            line, node = pairs[0][0].start_mark.line + 1, pairs[0][1]
        elif isinstance(node, yaml.SequenceNode) and index and int(index) < len(node.value):
            node = node.value[int(index)]
            line = node.start_mark.line + 1
        else:
            break
    return line
