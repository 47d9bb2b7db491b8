"""Reads from a Kubernetes API server over aiohttp: pages of lists, and watch events. It decides nothing."""

import asyncio
import base64
import json
import os
import ssl
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import aiohttp
import yaml

#: Where a pod's ServiceAccount is mounted.
SERVICE_ACCOUNT_DIR: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: How long a request that is no watch may take, seconds.
REQUEST_TIMEOUT_S: Final = 30.0
#: Silence after which a watch is taken for dead: bookmarks come about once a minute.
WATCH_SILENCE_S: Final = 90.0
#: Longest single watch event or list page.
MAX_OBJECT_BYTES: Final = 16 << 20

Object = Mapping[str, Any]


class ApiError(Exception):
    """The API server refused, or cannot be used. `status` is the HTTP or Status code, 0 without one."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_gone(self) -> bool:
        """Tell whether the resource version is too old, so that only a new list helps."""
        return self.status == 410


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """Where the API server is and how to be let in."""

    server: str
    tls: ssl.SSLContext | None = None
    token_file: Path | None = None
    """Read again for every request: projected tokens are renewed in place."""
    token: str = ""

    @classmethod
    def in_cluster(cls, directory: Path = SERVICE_ACCOUNT_DIR, env: Mapping[str, str] = os.environ) -> Self:
        """Return the access that Kubernetes gives to every pod. Raises ApiError outside of one."""
        host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise ApiError(0, "KUBERNETES_SERVICE_HOST is not set: not in a cluster; give --endpoints-file")
        token, ca = directory / "token", directory / "ca.crt"
        if not token.is_file():
            msg = f"{token} is missing: the pod needs its ServiceAccount token mounted"
            raise ApiError(0, msg)
        tls = ssl.create_default_context(cafile=str(ca) if ca.is_file() else None)
        host = f"[{host}]" if ":" in host else host
        return cls(server=f"https://{host}:{port}", tls=tls, token_file=token)

    @classmethod
    def from_kubeconfig(cls, path: Path) -> Self:
        """Return the access of the file's current context. Raises ApiError when there is none to use."""
        try:
            config = yaml.safe_load(path.read_text())
            context = _named(config, "contexts", config["current-context"])["context"]
            cluster = _named(config, "clusters", context["cluster"])["cluster"]
            user = _named(config, "users", context["user"])["user"]
            server = str(cluster["server"]).rstrip("/")
            tls = _client_tls(cluster, user, path.parent) if server.startswith("https:") else None
            token_file = Path(user["tokenFile"]) if "tokenFile" in user else None
            return cls(server=server, tls=tls, token_file=token_file, token=str(user.get("token", "")))
        except Exception as error:  # a file of any content meets many kinds of errors on this way
            msg = f"{path}: no usable current context ({type(error).__name__})"
            raise ApiError(0, msg) from error

    def headers(self) -> dict[str, str]:
        """Return the headers of a request. Raises OSError when the token cannot be read."""
        token = self.token_file.read_text().strip() if self.token_file else self.token
        return {"Authorization": f"Bearer {token}"} if token else {}


class KubernetesApi:
    """A client, to be closed. Its reads raise ApiError, aiohttp.ClientError, OSError and TimeoutError."""

    def __init__(self, access: ApiAccess) -> None:
        self._access = access
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()
            # Transports that were aborted give their sockets back in the loop's next turn.
            await asyncio.sleep(0)

    async def page(self, path: str, query: Mapping[str, str]) -> Object:
        """Return one page of a list."""
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        async with self._get(path, query, timeout) as response:
            body = await _bounded(response)
        return _object(body)

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[Object, None]:
        """Yield watch events, bookmarks included, until the server ends the watch; raise ERROR events."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT_S, sock_read=WATCH_SILENCE_S)
        async with self._get(path, {**query, "watch": "true"}, timeout) as response:
            await _raise_for_status(response)
            pending = b""
            async for piece in response.content.iter_any():
                *lines, pending = (pending + piece).split(b"\n")
                if len(pending) > MAX_OBJECT_BYTES:
                    raise ApiError(0, "a watch event is too long")
                for line in lines:
                    event = _object(line)
                    if event.get("type") == "ERROR":
                        status = event.get("object") or {}
                        raise ApiError(
                            int(status.get("code") or 0), str(status.get("message", "watch failed"))
                        )
                    yield event

    @asynccontextmanager
    async def _get(
        self, path: str, query: Mapping[str, str], limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            tls = self._access.tls if self._access.tls is not None else True
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls, limit=0))
        async with self._session.get(
            self._access.server + path,
            params=query,
            headers=self._access.headers(),
            timeout=limits,
            allow_redirects=False,
        ) as response:
            try:
                yield response
            finally:
                # A watch that is left half-way would linger in a TLS farewell that nobody answers.
                connection = response.connection
                if connection is not None and connection.transport is not None:
                    connection.transport.abort()


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    await _raise_for_status(response)
    body = await response.content.read(MAX_OBJECT_BYTES + 1)
    while len(body) <= MAX_OBJECT_BYTES and (more := await response.content.read(MAX_OBJECT_BYTES)):
        body += more
    if len(body) > MAX_OBJECT_BYTES:
        raise ApiError(0, "a list page is too long")
    return body


async def _raise_for_status(response: aiohttp.ClientResponse) -> None:
    if response.status == 200:
        return
    body = await response.content.read(65_536)
    try:
        message = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        message = f"status {response.status}"
    raise ApiError(response.status, message)


def _object(body: bytes) -> Object:
    try:
        parsed = json.loads(body)
    except ValueError as error:
        raise ApiError(0, "the API server sent no JSON") from error
    if not isinstance(parsed, dict):
        raise ApiError(0, "the API server sent no object")
    return parsed


def _named(config: Any, section: str, name: str) -> Any:
    return next(entry for entry in config[section] if entry["name"] == name)


def _client_tls(cluster: Mapping[str, Any], user: Mapping[str, Any], beside: Path) -> ssl.SSLContext:
    """Return a context with the cluster's authority and the user's certificate, inline or from files."""
    tls = ssl.create_default_context()
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    authority = _material(cluster, "certificate-authority", beside)
    if authority is not None:
        tls.load_verify_locations(cadata=authority.decode())
    certificate, key = (_material(user, name, beside) for name in ("client-certificate", "client-key"))
    if certificate is not None and key is not None:
        with tempfile.TemporaryDirectory() as directory:
            pair = Path(directory) / "pair.pem"
            pair.touch(mode=0o600)
            pair.write_bytes(certificate + b"\n" + key)
            tls.load_cert_chain(pair)
    return tls


def _material(section: Mapping[str, Any], name: str, beside: Path) -> bytes | None:
    if inline := section.get(f"{name}-data"):
        return base64.b64decode(inline)
    if path := section.get(name):
        return (beside / str(path)).read_bytes()
    return None
