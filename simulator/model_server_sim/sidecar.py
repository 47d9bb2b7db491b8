"""What the sidecar of a decode pod does: has prompts computed and media encoded by the servers in headers.

A server that is dead, refuses or is too slow costs at most the limit; the decode server then does its work.
"""

import asyncio
import json
from dataclasses import replace
from typing import Final, Self

import aiohttp
from aiohttp import web

from model_server_sim import protocol
from model_server_sim.headers import (
    ENCODED_BY_HEADER,
    ENCODERS_HEADER,
    FALLBACK_HEADER,
    PREFILLED_BY_HEADER,
    PREFILLER_HEADER,
    SERVER_HEADER,
)
from model_server_sim.protocol import Generation

_JSON: Final = {"Content-Type": "application/json"}


class _FailedError(Exception):
    """The other server did not do its part; the text is one word for FALLBACK_HEADER."""


class Sidecar:
    """Runs the stages before decode. Use it as an async context manager while serving."""

    def __init__(self, address: str, limit_s: float) -> None:
        """`address` is the decode server's own "host:port"; `limit_s` bounds each call, in real seconds."""
        self._address = address
        self._limit = aiohttp.ClientTimeout(total=limit_s)
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=self._limit, connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def prepare(
        self, request: web.Request, body: bytes, made: Generation, answer: dict[str, str]
    ) -> Generation:
        """Run the stages that the request's headers name; return what is left to generate.

        `answer` gets headers that say what was done. A client that hangs up ends the calls as well.
        """
        encoders = [each.strip() for each in request.headers.get(ENCODERS_HEADER, "").split(",")]
        if any(encoders):
            answer |= await self._encoded(body, [each for each in encoders if each])
        prefiller = request.headers.get(PREFILLER_HEADER, "").strip()
        if not prefiller or prefiller == self._address:
            return made
        try:
            name = await self._prefilled(f"http://{prefiller}{request.path}", body)
        except _FailedError as failed:
            answer[FALLBACK_HEADER] = str(failed)
            return made
        answer[PREFILLED_BY_HEADER] = name
        return replace(made, remote_prefill=True)

    async def _prefilled(self, url: str, body: bytes) -> str:
        """Have the prompt computed; return the server's name. Raises _FailedError."""
        name, answer = await self._asked(url, protocol.prefill_body(body))
        try:
            transfer = json.loads(answer)["kv_transfer_params"]
            offered = transfer["do_remote_prefill"] is True
        except (ValueError, TypeError, KeyError):
            offered = False
        if not offered:
            raise _FailedError("no-transfer")
        return name

    async def _encoded(self, body: bytes, encoders: list[str]) -> dict[str, str]:
        """Have each image, video and audio encoded, by one server after the other."""
        calls = [
            self._asked(f"http://{encoders[at % len(encoders)]}/v1/chat/completions", each)
            for at, each in enumerate(protocol.media_bodies(body))
        ]
        done = await asyncio.gather(*calls, return_exceptions=True)
        for each in done:
            if isinstance(each, BaseException) and not isinstance(each, _FailedError):
                raise each
        names = [each[0] for each in done if isinstance(each, tuple)]
        return {ENCODED_BY_HEADER: ",".join(names)} if names else {}

    async def _asked(self, url: str, body: bytes) -> tuple[str, bytes]:
        try:
            async with self._session.post(url, data=body, headers=_JSON) as response:
                answer = await response.read()
                if response.status != 200:
                    raise _FailedError(f"status-{response.status}")
                return response.headers.get(SERVER_HEADER, ""), answer
        except TimeoutError:
            raise _FailedError("timeout") from None
        except (aiohttp.ClientError, OSError, ValueError):  # ValueError: no URL
            raise _FailedError("unreachable") from None
