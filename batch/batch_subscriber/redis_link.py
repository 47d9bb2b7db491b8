"""Connections to a Redis or Valkey server: the URL, scripts that run as one step, errors.

Everything that has to hold together is one script on the server, so that the end of this process never leaves
half of it.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import AuthenticationError, NoScriptError, RedisError

from batch_subscriber.errors import BatchError, ConfigurationError
from batch_subscriber.urls import secret_file

#: Connections of one process, and how long a command waits for a free one, seconds.
MAX_CONNECTIONS: Final = 32
_WAIT_S: Final = 10.0
#: A command that has no answer by then has failed, seconds; longer than any that blocks on the server.
_ANSWER_S: Final = 15.0
_RETRIES: Final = 2


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A server, and the parameters of the URL that are for the queue or store."""

    server: str
    """What the client library takes, without those parameters."""
    password: str | None
    """From `password_file`; None leaves the URL's own."""
    names: dict[str, str]
    limits: dict[str, int]


def redis_url(url: str, names: Sequence[str], limits: Sequence[str]) -> RedisUrl:
    """Return the parts of `redis://HOST:PORT/DB?NAME=text&LIMIT=number`; rediss:// uses TLS.

    Every URL may have `password_file`, and with TLS `ca_file`. Raises ConfigurationError.
    """
    parts = urlsplit(url)
    shown = url.rsplit("@", maxsplit=1)[-1]
    found: dict[str, str] = {}
    numbers: dict[str, int] = {}
    password: str | None = None
    library: list[str] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in names and value:
            found[name] = value
        elif name in limits and value.isascii() and value.isdigit() and 0 < int(value) < 2**62:
            numbers[name] = int(value)
        elif name == "password_file":
            password = secret_file(value)
        elif name == "ca_file" and parts.scheme == "rediss":
            library.append(f"ssl_ca_certs={value}")
        else:
            known = ", ".join(sorted([*names, *limits, "password_file"]))
            msg = f"{shown!r}: {name}={value} is no parameter or no value of one; there are {known}"
            raise ConfigurationError(msg)
    if not parts.hostname:
        msg = f"{shown!r} must be {parts.scheme}://HOST[:PORT][/DATABASE]"
        raise ConfigurationError(msg)
    server = urlunsplit((parts.scheme, parts.netloc, parts.path, "&".join(library), ""))
    return RedisUrl(server, password, found, numbers)


class RedisLink:
    """A pool of connections. Every method raises `unavailable` when the server does not do what it should."""

    def __init__(self, url: RedisUrl, unavailable: type[BatchError]) -> None:
        """Prepare connections; the first command makes one."""
        given: dict[str, Any] = {} if url.password is None else {"password": url.password}
        pool = BlockingConnectionPool.from_url(
            url.server,
            max_connections=MAX_CONNECTIONS,
            timeout=_WAIT_S,
            socket_timeout=_ANSWER_S,
            socket_connect_timeout=_ANSWER_S,
            # A server that restarted has closed its connections: those are made anew.
            retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), _RETRIES),
            retry_on_error=[ConnectionError],
            health_check_interval=30,
            **given,
        )
        self._client = Redis.from_pool(pool)
        self._unavailable = unavailable
        self._checked = False

    async def run(self, script: "Script", keys: Sequence[str], *arguments: str | bytes | float) -> Any:
        """Run a script as one step; its answer as the server's plain types, text as bytes."""
        await self._check()
        try:
            return await self.command("EVALSHA", script.digest, len(keys), *keys, *arguments)
        except _ScriptMissingError:
            return await self.command("EVAL", script.text, len(keys), *keys, *arguments)

    async def command(self, *words: str | bytes | float) -> Any:
        """Send a command; its answer as the server's plain types."""
        try:
            return await cast("Any", self._client).execute_command(*words)
        except NoScriptError as missing:
            raise _ScriptMissingError from missing
        except AuthenticationError as refused:
            msg = f"the server refuses the password: {refused}"
            raise self._unavailable(msg) from refused
        except (RedisError, OSError) as failure:
            raise self._unavailable(str(failure) or type(failure).__name__) from failure

    async def _check(self) -> None:
        """Refuse a server that may throw keys away when its memory is full."""
        if self._checked:
            return
        memory = await self.command("INFO", "memory")
        policy = memory.get("maxmemory_policy", "noeviction") if isinstance(memory, dict) else "noeviction"
        if policy != "noeviction" and memory.get("maxmemory"):
            msg = f"the server has maxmemory-policy {policy}: it may drop jobs and results; set noeviction"
            raise ConfigurationError(msg)
        self._checked = True

    async def is_durable(self) -> bool:
        """Return whether the server says that it logs every write to disk (append-only file)."""
        persistence = await self.command("INFO", "persistence")
        return bool(isinstance(persistence, dict) and persistence.get("aof_enabled"))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose(close_connection_pool=True)  # type: ignore[no-untyped-call, unused-ignore]


class _ScriptMissingError(Exception):
    """The server has not seen the script since its start."""


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and its SHA-1, by which the server knows it."""

    text: str
    digest: str

    @classmethod
    def of(cls, text: str) -> "Script":
        """Return the script of a text."""
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
