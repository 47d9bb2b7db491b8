"""The client of the gateway: one POST for a job, its whole answer or a fault.

Cancelling the call closes the connection. Engines that watch their connections stop the inference then;
docs/batch.md says which do.
"""

import asyncio
import time
from pathlib import Path
from typing import Final

import aiohttp
from yarl import URL

from batch_subscriber.answers import Answer, GatewayFault
from batch_subscriber.jobs import Job
from inference_api.names import OBJECTIVE_HEADER, OLD_OBJECTIVE_HEADER

#: How long a connection may take to come about.
_CONNECT_S: Final = 10.0
#: How long a key that was read from its file is used.
_KEY_LIFE_S: Final = 30.0
#: A sender's job must not choose its priority by a header: its `objective` does, which the subscriber knows.
_NOT_PASSED: Final = frozenset({OBJECTIVE_HEADER, OLD_OBJECTIVE_HEADER})


class Gateway:
    """Connections to one gateway."""

    def __init__(self, url: str, *, objective: str, max_response_bytes: int, api_key_file: str = "") -> None:
        """Send to `url`, with `objective` for jobs that name none.

        `api_key_file` has the key that is sent as `Authorization: Bearer` with jobs that bring none.
        """
        self._url = url.rstrip("/")
        self._objective = objective
        self._most = max_response_bytes
        self._key_file = Path(api_key_file) if api_key_file else None
        self._key = ""
        self._key_until = float("-inf")
        self._session: aiohttp.ClientSession | None = None

    async def post(self, job: Job, timeout_s: float) -> Answer:
        """Send a job; return its answer. Raises GatewayFault, also when it is not over after `timeout_s`."""
        session = self._open()
        try:
            async with session.post(
                URL(self._url + job.path, encoded=True),  # as it is, not normalised
                data=job.body,
                headers=self._headers(job),
                timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_S),
            ) as response:
                return Answer(
                    response.status,
                    response.headers.get("content-type", "")[:256],
                    response.headers.get("retry-after"),
                    await self._whole(response),
                )
        except TimeoutError as late:
            msg = f"no whole answer within {timeout_s:.0f} s"
            raise GatewayFault(msg) from late
        except (aiohttp.ClientError, OSError) as fault:
            raise GatewayFault(type(fault).__name__, is_unreachable=True) from fault

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
                skip_auto_headers=("Accept-Encoding",),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": "headroom-batch"},
            )
        return self._session

    def _headers(self, job: Job) -> list[tuple[str, str]]:
        headers = [pair for pair in job.headers if pair[0] not in _NOT_PASSED]
        names = {name for name, _ in headers}
        if "content-type" not in names:
            headers.append(("content-type", "application/json"))
        if objective := job.objective or self._objective:
            headers.append((OBJECTIVE_HEADER, objective))
        if self._key_file is not None and "authorization" not in names:
            headers.append(("authorization", f"Bearer {self._api_key(self._key_file)}"))
        return headers

    def _api_key(self, file: Path) -> str:
        now = time.monotonic()
        if now >= self._key_until:
            self._key = file.read_text().strip()
            self._key_until = now + _KEY_LIFE_S
        return self._key

    async def _whole(self, response: aiohttp.ClientResponse) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in response.content.iter_any():
            size += len(part)
            if size > self._most:
                response.close()
                msg = f"an answer of more than {self._most} bytes"
                raise GatewayFault(msg)
            parts.append(part)
        return b"".join(parts)


async def fetch_page(session: aiohttp.ClientSession, url: str, most: int) -> bytes | None:
    """Return a page of at most `most` bytes; None when none comes within two seconds."""
    try:
        async with asyncio.timeout(2.0), session.get(url) as response:
            if response.status != 200:
                return None
            page = await response.content.read(most + 1)
            while len(page) <= most and (more := await response.content.read(most + 1 - len(page))):
                page += more
            return page if len(page) <= most else None
    except (TimeoutError, aiohttp.ClientError, OSError):
        return None
