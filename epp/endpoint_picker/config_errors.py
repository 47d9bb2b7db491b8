"""Faults of a configuration, each with the path of the key that it concerns."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from pydantic import ValidationError

#: Faults named in one message; the rest are counted.
MAX_FAULTS: Final = 5


class ConfigError(Exception):
    """The configuration cannot be used. `path` names the key ("plugins[0].type"); "" is the whole text."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message
        self.faults: Sequence[ConfigError] = (self,)
        """The faults that this error stands for; itself alone unless `joined` made it."""


class ConsequentError(ConfigError):
    """A fault that follows from one that is reported already; `Faults` drops it."""


class Faults:
    """Collects faults, so that one reading of a configuration reports all of them."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: list[ConfigError] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Keep a ConfigError raised in the `with` block; the code after the block runs."""
        try:
            yield
        except ConsequentError:
            pass
        except ConfigError as error:
            self._found.extend(error.faults)

    def __bool__(self) -> bool:
        return bool(self._found)

    def raise_any(self) -> None:
        """Raise one ConfigError for all that were kept, if there are any."""
        if self._found:
            raise joined(self._found)


def joined(faults: Sequence[ConfigError]) -> ConfigError:
    """Return one ConfigError, at the path of the first, that names the first few."""
    first, *others = faults
    rest = "".join(f"; {each}" for each in others[: MAX_FAULTS - 1])
    more = f" (and {len(faults) - MAX_FAULTS} more)" if len(faults) > MAX_FAULTS else ""
    error = ConfigError(first.path, first.message + rest + more)
    error.faults = tuple(faults)
    return error


def from_validation(error: ValidationError, prefix: str = "") -> ConfigError:
    """Return a ConfigError that names the first few faults by path, without the offending values."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    return joined(
        [ConfigError(_path(prefix, fault["loc"]), _sentence(fault["type"], fault["msg"])) for fault in faults]
    )


def _path(prefix: str, loc: tuple[int | str, ...]) -> str:
    path = prefix
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def _sentence(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return "unknown key, or one that this version does not act on; remove it"
    return message.removeprefix("Value error, ")
