"""Access tokens of Google Cloud: of the pod's ServiceAccount, from the metadata server, or from a file."""

import asyncio
import time
from pathlib import Path
from typing import Final, Protocol

import aiohttp
from typing_extensions import override

METADATA_ADDRESS: Final = (
    "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"
)
_RENEW_BEFORE_S: Final = 120.0
_ANSWER_S: Final = 10.0


class TokenError(Exception):
    """No token was to be had; trying again may help."""


class TokenSource(Protocol):
    """Where access tokens come from."""

    async def token(self) -> str:
        """Return a token that is valid for a minute at least, "" for none. Raises TokenError."""
        ...


class NoToken(TokenSource):
    """For a fake server."""

    @override
    async def token(self) -> str:
        """Return nothing."""
        return ""


class FileToken(TokenSource):
    """A file that something else keeps current."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @override
    async def token(self) -> str:
        """Return what the file has."""
        try:
            return self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as fault:
            msg = f"the token file cannot be read: {fault}"
            raise TokenError(msg) from fault


class MetadataToken(TokenSource):
    """The metadata server of a machine or pod on Google Cloud; with Workload Identity, the pod's account."""

    def __init__(self, address: str = METADATA_ADDRESS) -> None:
        self._address = address
        self._token = ""
        self._until = 0.0
        self._lock = asyncio.Lock()

    @override
    async def token(self) -> str:
        """Return the token, fetched anew two minutes before its end."""
        async with self._lock:
            if time.monotonic() < self._until:
                return self._token
            try:
                limit = aiohttp.ClientTimeout(total=_ANSWER_S)
                async with (
                    aiohttp.ClientSession(timeout=limit, headers={"Metadata-Flavor": "Google"}) as session,
                    session.get(self._address) as answer,
                ):
                    answer.raise_for_status()
                    page = await answer.json(content_type=None)
                token, lasts = str(page["access_token"]), float(page["expires_in"])
            except (aiohttp.ClientError, TimeoutError, KeyError, ValueError, TypeError) as fault:
                msg = f"no token from the metadata server: {fault!r}; outside Google Cloud give token_file"
                raise TokenError(msg) from fault
            self._token, self._until = token, time.monotonic() + max(0.0, lasts - _RENEW_BEFORE_S)
            return token
