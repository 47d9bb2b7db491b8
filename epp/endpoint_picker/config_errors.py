"""What is wrong with a configuration, said by path."""

from typing import Final

from pydantic import ValidationError

#: Faults named in one message; the rest are counted.
MAX_FAULTS: Final = 5


class ConfigError(Exception):
    """The configuration cannot be used. `path` is where ("plugins[0].type", "" for the whole text)."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message


def from_validation(error: ValidationError, prefix: str = "") -> ConfigError:
    """Return a ConfigError that names the first few faults by path, without the offending values."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    named = [
        (_path(prefix, fault["loc"]), _sentence(fault["type"], fault["msg"])) for fault in faults[:MAX_FAULTS]
    ]
    more = f" (and {len(faults) - MAX_FAULTS} more)" if len(faults) > MAX_FAULTS else ""
    first_path, first_message = named[0]
    rest = "".join(f"; {path}: {message}" for path, message in named[1:])
    return ConfigError(first_path, first_message + rest + more)


def _path(prefix: str, loc: tuple[int | str, ...]) -> str:
    path = prefix
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def _sentence(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return "unknown key, or one that this version does not act on; remove it"
    return message.removeprefix("Value error, ")
