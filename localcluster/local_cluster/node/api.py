"""The node's client of the API server: JSON over aiohttp, a dozen calls, no typed models."""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import aiohttp
import yaml

from local_cluster.node.objects import Json

_TIMEOUT: Final = aiohttp.ClientTimeout(total=30)
#: Seconds after which the server ends a watch; less than the read timeout, which takes a watch for dead.
_WATCH_S: Final = 240
_LINE_LIMIT: Final = 16 << 20
MERGE_PATCH: Final = "application/merge-patch+json"


class ApiError(Exception):
    """The API server refused a request, or could not be reached (status 0)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Access:
    """The API server's address and the client's credentials."""

    url: str
    certificate_authority: str
    certificate: str
    key: str

    @classmethod
    def from_kubeconfig(cls, path: Path) -> "Access":
        """Read a kubeconfig that `write_kubeconfig` wrote."""
        config = yaml.safe_load(path.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        return cls(
            cluster["server"],
            cluster["certificate-authority"],
            user["client-certificate"],
            user["client-key"],
        )


class Api:
    """One session with the API server; use it as an asynchronous context manager."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        context = ssl.create_default_context(cafile=self._access.certificate_authority)
        context.load_cert_chain(self._access.certificate, self._access.key)
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        self._session = aiohttp.ClientSession(self._access.url, connector=connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        """Make one request and return the answer's JSON.

        Raises:
            ApiError: the server refused, or could not be reached (status 0).
        """
        session = self._open_session()
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type}
        try:
            async with session.request(
                method, path, data=data, params=query, headers=headers, timeout=_TIMEOUT
            ) as response:
                answer: Json = await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ApiError(0, "Unreachable", f"{method} {path}: {error}") from error
        if response.status >= 300:
            raise _refusal(response.status, answer)
        return answer

    async def watch(self, path: str, resource_version: str) -> AsyncGenerator[Json, None]:
        """Yield the events of one watch until the server ends it.

        Raises:
            ApiError: the server refused it, the version is too old (status 410), or the connection broke.
        """
        query = {
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_S),
        }
        timeout = aiohttp.ClientTimeout(total=None, connect=10, sock_read=_WATCH_S + 30)
        try:
            async with self._open_session().get(path, params=query, timeout=timeout) as response:
                if response.status >= 300:
                    raise _refusal(response.status, await response.json(content_type=None))
                async for line in _lines(response.content):
                    event: Json = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _refusal(event["object"].get("code", 500), event["object"])
                    yield event
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ApiError(0, "Unreachable", f"watch {path}: {error}") from error

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            message = "the client is not open"
            raise RuntimeError(message)
        return self._session


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Split a stream into lines of any sane length (readline of aiohttp stops at 64 KiB)."""
    rest = bytearray()
    async for chunk in content.iter_any():
        rest += chunk
        *whole, last = rest.split(b"\n")
        for line in whole:
            yield bytes(line)
        rest = bytearray(last)
        if len(rest) > _LINE_LIMIT:
            message = "an event is too long"
            raise ValueError(message)


def _refusal(status: int, answer: Any) -> ApiError:
    details = answer if isinstance(answer, dict) else {}
    return ApiError(status, details.get("reason", ""), details.get("message", f"HTTP {status}"))


async def settle(tasks: "set[asyncio.Task[None]]") -> None:
    """Cancel tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
