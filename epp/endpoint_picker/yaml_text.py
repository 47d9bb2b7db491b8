"""Reads YAML that a user wrote: its size is bounded, and every fault in it is a ConfigError. Pure."""

from typing import Final

import yaml

from endpoint_picker.config_errors import ConfigError

#: A ConfigMap holds no more than this.
MAX_BYTES: Final = 1 << 20


def load(text: str) -> object:
    """Return the values in YAML or JSON; None for blank text. Raises ConfigError, with the line if known."""
    if len(text) > MAX_BYTES:
        raise ConfigError("", f"longer than {MAX_BYTES} bytes")
    try:
        return yaml.safe_load(text)
    except Exception as error:  # tags whose values do not fit raise whatever their constructor meets
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise ConfigError("", f"not YAML{where}: {getattr(error, 'problem', None) or 'malformed'}") from error
