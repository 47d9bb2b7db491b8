"""Endpoints from a file, for a picker without Kubernetes.

The file holds `endpoints: [{name, namespace, address, port, labels}]` in YAML or JSON.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from cluster_client.pods import ip_literal
from endpoint_picker import yaml_text
from endpoint_picker.config_errors import ConfigError, from_validation
from endpoint_picker.datalayer.table import Endpoint

_LOG: Final = logging.getLogger(__name__)

#: Seconds between two checks of the file.
LOOK_INTERVAL_S: Final = 0.5

_Port = Annotated[
    int, BeforeValidator(lambda value: int(value) if str(value).isdecimal() else value), Field(ge=1, le=65535)
]
_Ip = Annotated[str, AfterValidator(ip_literal)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    namespace: str = "default"
    address: _Ip
    port: _Port
    labels: dict[str, str] = Field(default_factory=dict)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoints: tuple[_Entry, ...] = ()


def endpoints_in(text: str) -> list[Endpoint]:
    """Return the endpoints that the YAML or JSON lists, all ready. Raises ConfigError with a path."""
    try:
        parsed = _File.model_validate(yaml_text.load(text) or {})
    except ValidationError as error:
        raise from_validation(error) from None
    keys: set[tuple[str, str]] = set()
    for index, each in enumerate(parsed.endpoints):
        if (each.namespace, each.name) in keys:
            raise ConfigError("endpoints" + f"[{index}].name", f'two endpoints are named "{each.name}"')
        keys.add((each.namespace, each.name))
    return [
        Endpoint(each.name, each.namespace, each.address, each.port, labels=each.labels)
        for each in parsed.endpoints
    ]


class FileWatch:
    """Reads the file, and again when it was replaced or changed; a faulty one changes only `error`."""

    def __init__(self, path: Path, on_endpoints: Callable[[list[Endpoint]], object]) -> None:
        self._path = path
        self._on_endpoints = on_endpoints
        self._seen: tuple[int, int, int] | None = None
        self.synced = False
        """Whether the file was ever read without a fault."""
        self.error = ""
        """What is wrong with the file as it is now; "" when it is in use."""

    async def run(self) -> None:
        """Follow the file until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_INTERVAL_S)

    def look(self) -> None:
        """Read the file if its inode, modification time or size differ from the last good reading."""
        try:
            status = self._path.stat()
            mark = (status.st_ino, status.st_mtime_ns, status.st_size)
            if mark == self._seen:
                return
            endpoints = endpoints_in(self._path.read_text())
        except (OSError, UnicodeDecodeError, ConfigError) as error:
            if (found := f"{self._path}: {_words(error)}") != self.error:
                _LOG.warning("%s", found)
                self.error = found
            return
        self._seen = mark
        self.synced, self.error = True, ""
        self._on_endpoints(endpoints)


def _words(error: Exception) -> str:
    """Return the fault without the file's path."""
    if isinstance(error, FileNotFoundError):
        return "no such file; waiting for the file to appear"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
