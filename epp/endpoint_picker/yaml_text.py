"""Reads YAML that a user wrote, of bounded size; every fault in it is a ConfigError. Pure."""

import re
from typing import Final

import yaml

from endpoint_picker.config_errors import ConfigError

#: Longest text: a ConfigMap holds at most 1 MiB.
MAX_BYTES: Final = 1 << 20

_PART: Final = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def load(text: str) -> object:
    """Return the values in YAML or JSON; None for blank text. Raises ConfigError, with the line if known."""
    if len(text) > MAX_BYTES:
        raise ConfigError("", f"longer than {MAX_BYTES} bytes")
    try:
        return yaml.safe_load(text)
    except Exception as error:  # PyYAML's constructors raise ValueError and others on a bad value
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise ConfigError("", f"not YAML{where}: {getattr(error, 'problem', None) or 'malformed'}") from error


def line_of(text: str, path: str) -> int:
    """Return the line, from 1, of the deepest part of "a[0].b" that is in the YAML; 0 when there is none."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return 0
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
