"""A verifying client for OpenAI-compatible endpoints, direct or through a gateway, for demo and tests.

It compares the answer's text with the simulator's x-sim-content-sha256, and the body that it sent with
x-sim-request-sha256. It never retries and never raises for a failed request: `Result.error` says what failed.
"""

import hashlib
import io
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp

from model_server_sim.headers import (
    CONTENT_SHA256_HEADER,
    ECHO_HEADER,
    REQUEST_BYTES_HEADER,
    REQUEST_SHA256_HEADER,
    SERVER_HEADER,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of one request. Times are `time.monotonic()` seconds."""

    start: float
    first_byte: float | None
    """When the first byte of the response body arrived; None when none did."""
    end: float
    status: int
    """0 when no status arrived."""
    served_by: str
    """The header x-sim-server; empty when it is absent."""
    error: str
    """Empty when the request succeeded and every check passed; else what was wrong, in one line."""
    text: str = ""
    """Generated text, or the start of an error's body."""
    chunks: int = 0
    """Server-sent events received, [DONE] included; 0 for a plain answer."""
    body_bytes: int = 0
    """Bytes of the response body."""
    usage: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Response headers, names in lower case."""

    @property
    def ok(self) -> bool:
        """Return whether the status is 200 and every check passed."""
        return not self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request to send. Unset fields stay out of the body."""

    prompt: str = "Say something."
    model: str | None = None
    max_tokens: int | None = 16
    stream: bool = False
    chat: bool = False
    padding_bytes: int = 0
    """Length of an extra field that the server ignores: a large body with a small prompt."""
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    """Further fields of the body."""

    @property
    def path(self) -> str:
        """Return the URL's path."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self) -> bytes:
        """Return the JSON body."""
        fields: dict[str, object] = {}
        if self.model is not None:
            fields["model"] = self.model
        if self.chat:
            fields["messages"] = [{"role": "user", "content": self.prompt}]
        else:
            fields["prompt"] = self.prompt
        if self.max_tokens is not None:
            fields["max_tokens"] = self.max_tokens
        if self.stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.padding_bytes:
            fields["padding"] = "x" * self.padding_bytes
        return json.dumps({**fields, **self.extra}).encode()


class _Receipt:
    """What has arrived of a response so far, so that a response cut short still gives a full Result."""

    __slots__ = ("body", "chunks", "done", "first_byte", "headers", "problem", "status", "text", "usage")

    def __init__(self) -> None:
        self.first_byte: float | None = None
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.chunks = 0
        self.done = False
        self.text = ""
        self.usage: dict[str, object] = {}
        self.problem = ""


class InferenceClient:
    """Sends requests to one base URL. Use as an async context manager.

    `headers` go with every request (a Host, a test key). No request outlives `timeout_s`.
    """

    def __init__(
        self, base_url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers = dict(headers or {})
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=self._timeout, headers=self._headers, read_bufsize=2**20
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def send(self, ask: Ask) -> Result:
        """Send one request and check the answer."""
        body = ask.body()
        return await self.send_raw(body, path=ask.path, headers=ask.headers, stream=ask.stream)

    async def send_raw(
        self,
        body: bytes,
        *,
        path: str = "/v1/completions",
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
    ) -> Result:
        """Send any bytes as a body and check the answer against the checksums in its headers."""
        return await self._exchange(
            "POST", path, body, headers or {}, _read_events if stream else _read_answer
        )

    async def echo(
        self, body: bytes, *, path: str = "/v1/completions", headers: Mapping[str, str] | None = None
    ) -> Result:
        """Send a body that the simulator sends back, and compare every byte."""
        asked = {ECHO_HEADER: "1", "Content-Type": "application/json", **(headers or {})}

        def read(receipt: _Receipt) -> None:
            if receipt.body != body:
                receipt.problem = f"echo differs: sent {len(body)} bytes, received {len(receipt.body)}"

        return await self._exchange("POST", path, body, asked, read)

    async def models(self, headers: Mapping[str, str] | None = None) -> Result:
        """GET /v1/models; the text is a comma list of the model ids."""

        def read(receipt: _Receipt) -> None:
            ids = [str(entry["id"]) for entry in json.loads(receipt.body)["data"]]
            receipt.text = ",".join(ids)

        return await self._exchange("GET", "/v1/models", None, headers or {}, read)

    async def page(self, path: str, headers: Mapping[str, str] | None = None) -> Result:
        """GET any path; the text is the body."""

        def read(receipt: _Receipt) -> None:
            receipt.text = receipt.body.decode()

        return await self._exchange("GET", path, None, headers or {}, read)

    async def _exchange(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        read: Callable[[_Receipt], None],
    ) -> Result:
        receipt, start = _Receipt(), time.monotonic()
        asked = {"Content-Type": "application/json", **headers} if body is not None else dict(headers)
        try:
            await self._transfer(receipt, method, path, body, asked)
            _check(receipt, body, read)
        except TimeoutError:
            receipt.problem = f"the answer was not complete within {self._timeout.total:g} s"
        except (aiohttp.ClientError, OSError) as error:
            receipt.problem = f"{type(error).__name__}: {error}"
        return Result(
            start=start,
            first_byte=receipt.first_byte,
            end=time.monotonic(),
            status=receipt.status,
            served_by=receipt.headers.get(SERVER_HEADER, ""),
            error=receipt.problem,
            text=receipt.text,
            chunks=receipt.chunks,
            body_bytes=len(receipt.body),
            usage=receipt.usage,
            headers=receipt.headers,
        )

    async def _transfer(
        self, receipt: _Receipt, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> None:
        if self._session is None:
            raise RuntimeError("InferenceClient is used outside its `async with`")
        url = self._base_url + path
        data = (
            None if body is None else io.BytesIO(body)
        )  # aiohttp sends a file in chunks, bytes in one write
        async with self._session.request(method, url, data=data, headers=headers) as response:
            receipt.status = response.status
            receipt.headers = {name.lower(): value for name, value in response.headers.items()}
            async for piece in response.content.iter_any():
                if receipt.first_byte is None:
                    receipt.first_byte = time.monotonic()
                receipt.body += piece


def _check(receipt: _Receipt, sent: bytes | None, read: Callable[[_Receipt], None]) -> None:
    """Read the answer into the receipt and note the first failed check in `problem`."""
    if receipt.status != 200:
        receipt.text = receipt.body[:500].decode(errors="replace")
        receipt.problem = f"status {receipt.status}: {receipt.text[:200]}"
        return
    try:
        read(receipt)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        receipt.problem = f"unreadable answer: {error!r}"
    if receipt.problem or sent is None:
        return
    received = receipt.headers.get(REQUEST_SHA256_HEADER)
    if received is not None and received != hashlib.sha256(sent).hexdigest():
        got = receipt.headers.get(REQUEST_BYTES_HEADER)
        receipt.problem = f"the server received another body: {got} bytes instead of {len(sent)}"


def _read_answer(receipt: _Receipt) -> None:
    fields = json.loads(receipt.body)
    choice = fields["choices"][0]
    receipt.text = choice["message"]["content"] if "message" in choice else choice["text"]
    receipt.usage = fields.get("usage") or {}
    _check_text(receipt)


def _read_events(receipt: _Receipt) -> None:
    texts: list[str] = []
    events = [event for event in receipt.body.split(b"\n\n") if event]
    receipt.chunks = len(events)
    for event in events:
        data = event.removeprefix(b"data: ")
        if data == b"[DONE]":
            receipt.done = True
            continue
        fields = json.loads(data)
        if "error" in fields:
            receipt.problem = f"error in the stream: {fields['error']}"
            return
        receipt.usage = fields.get("usage") or receipt.usage
        texts.extend(map(_piece, fields["choices"]))
    receipt.text = "".join(texts)
    if not receipt.done:
        receipt.problem = f"the stream ended without [DONE] after {len(events)} events"
        return
    _check_text(receipt)


def _piece(choice: dict[str, Any]) -> str:
    text = choice["delta"].get("content") if "delta" in choice else choice["text"]
    return text or ""


def _check_text(receipt: _Receipt) -> None:
    told = receipt.headers.get(CONTENT_SHA256_HEADER)
    if told is not None and told != hashlib.sha256(receipt.text.encode()).hexdigest():
        receipt.problem = f"the answer's text ({len(receipt.text)} characters) does not match its checksum"
