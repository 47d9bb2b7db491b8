"""Reads pages of lists and watch events from a Kubernetes API server over aiohttp. It retries nothing."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import aiohttp

from cluster_client.access import ApiAccess
from cluster_client.errors import ApiError, ApiSilent, ApiUnavailable
from cluster_client.lines import Lines, LineTooLong
from cluster_client.objects import Object, mapping

#: Seconds for connecting and for the head of the answer to a watch, which a server sends at once.
ANSWER_TIMEOUT_S: Final = 10.0
#: Seconds for a whole page of a list.
PAGE_TIMEOUT_S: Final = 30.0
#: Seconds of silence after which a watch counts as dead: bookmarks come about once a minute.
WATCH_SILENCE_S: Final = 90.0
#: Seconds that a watch may last beyond its `timeoutSeconds`.
WATCH_SLACK_S: Final = 30.0
#: Longest single watch event or list page, bytes.
MAX_OBJECT_BYTES: Final = 16 << 20
_MAX_REFUSAL_BYTES: Final = 65_536


class KubernetesApi:
    """A client; call `close` at the end. Its reads raise only ApiError and ApiUnavailable."""

    def __init__(
        self,
        access: ApiAccess,
        *,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        watch_silence_s: float = WATCH_SILENCE_S,
        watch_slack_s: float = WATCH_SLACK_S,
        max_object_bytes: int = MAX_OBJECT_BYTES,
    ) -> None:
        self._access = access
        self._answer_timeout_s = answer_timeout_s
        self._watch_silence_s = watch_silence_s
        self._watch_slack_s = watch_slack_s
        self._max_object_bytes = max_object_bytes
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()
            # Aborted transports close their sockets in the event loop's next turn.
            await asyncio.sleep(0)

    async def page(self, path: str, query: Mapping[str, str]) -> Object:
        """Return one page of a list."""
        limits = aiohttp.ClientTimeout(total=PAGE_TIMEOUT_S)
        async with self._get(path, query, limits, PAGE_TIMEOUT_S) as response:
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > self._max_object_bytes:
                    raise ApiError(0, "a list page is too long")
        return _object(bytes(body))

    async def watch(self, path: str, query: Mapping[str, str], seconds: int) -> AsyncGenerator[Object, None]:
        """Yield watch events, bookmarks included, until the server ends the watch after about `seconds`.

        An ERROR event is raised as ApiError, WATCH_SILENCE_S without data as ApiSilent.
        """
        query = {**query, "watch": "true", "timeoutSeconds": str(seconds)}
        limits = aiohttp.ClientTimeout(
            total=seconds + self._watch_slack_s,
            sock_read=self._watch_silence_s,
        )
        lines = Lines(self._max_object_bytes)
        async with self._get(path, query, limits, self._answer_timeout_s) as response:
            async for piece in response.content.iter_any():
                try:
                    for line in lines.feed(piece):
                        yield _event(line)
                except LineTooLong:
                    raise ApiError(0, "a watch event is too long") from None

    @asynccontextmanager
    async def _get(
        self, path: str, query: Mapping[str, str], limits: aiohttp.ClientTimeout, answer_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a GET; enter with the head of a 200 answer. Raises ApiError, ApiUnavailable, ApiSilent."""
        if self._session is None:
            tls = self._access.tls if self._access.tls is not None else True
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=tls, limit=0), cookie_jar=aiohttp.DummyCookieJar()
            )
        headers = self._access.headers()
        try:
            async with asyncio.timeout(answer_s):
                response = await self._session.get(
                    self._access.server + path,
                    params=query,
                    headers=headers,
                    timeout=limits,
                    allow_redirects=False,
                )
            try:
                await _raise_for_status(response)
                yield response
            finally:
                # Abort: a clean TLS close would wait for a close_notify that may never come.
                connection = response.connection
                if connection is not None and connection.transport is not None:
                    connection.transport.abort()
                response.close()
        except TimeoutError as error:
            raise ApiSilent(str(error) or "no answer in time") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ApiUnavailable(f"{type(error).__name__}: {error}") from None


async def _raise_for_status(response: aiohttp.ClientResponse) -> None:
    if response.status == 200:
        return
    message = f"status {response.status}"
    try:
        body = bytearray()
        while len(body) < _MAX_REFUSAL_BYTES and (piece := await response.content.read(_MAX_REFUSAL_BYTES)):
            body += piece
        message = str(json.loads(bytes(body))["message"])
    except (ValueError, KeyError, TypeError):
        pass
    raise ApiError(response.status, message, _retry_after_s(response.headers.get("Retry-After", "")))


def _retry_after_s(text: str) -> float:
    """Return the header's seconds; 0 for any other form, which Kubernetes does not send."""
    return float(text) if text.isascii() and text.isdigit() and len(text) <= 6 else 0.0


def _event(line: bytes) -> Object:
    event = _object(line)
    if event.get("type") != "ERROR":
        return event
    status = mapping(event.get("object"))
    code, asked = status.get("code"), mapping(status.get("details")).get("retryAfterSeconds")
    raise ApiError(
        code if isinstance(code, int) else 0,
        str(status.get("message", "watch failed")),
        float(asked) if isinstance(asked, int) else 0.0,
    )


def _object(body: bytes) -> Object:
    try:
        parsed = json.loads(body)
    except ValueError:
        raise ApiError(0, "the API server sent no JSON") from None
    if not isinstance(parsed, dict):
        raise ApiError(0, "the API server sent no object")
    return parsed
