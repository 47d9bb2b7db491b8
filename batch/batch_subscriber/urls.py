"""Parts of the URLs that name queues and stores."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from batch_subscriber.errors import ConfigurationError


class FileUrl(NamedTuple):
    """A URL of something on the local file system."""

    path: str
    limits: Mapping[str, int]


def file_url(url: str, limits: tuple[str, ...] = ()) -> FileUrl:
    """Return the parts of `scheme:/path` or `scheme:///path`, with `?limit=number` for the names in `limits`.

    Raises ConfigurationError.
    """
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or not path or (path.endswith("/") and parts.scheme != "file"):
        msg = f"{url!r} must be {parts.scheme}:/PATH, without a host"
        raise ConfigurationError(msg)
    given: dict[str, int] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in limits:
            known = f"it may have {', '.join(limits)}" if limits else "it may have none"
            msg = f"{url!r}: unknown parameter {name}; {known}"
            raise ConfigurationError(msg)
        if not value.isascii() or not value.isdigit() or not 0 < int(value) < 2**62:
            msg = f"{url!r}: {name} must be a whole number above 0"
            raise ConfigurationError(msg)
        given[name] = int(value)
    return FileUrl(path, given)


def secret_file(path: str) -> str:
    """Return what the file of a `password_file` parameter holds. Raises ConfigurationError."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as fault:
        msg = f"password_file={path} cannot be read: {fault}"
        raise ConfigurationError(msg) from fault
