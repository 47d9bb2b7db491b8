"""Makes the calls of `Tokenizing`: over HTTP to model servers, or in a thread with a tokenizer file."""

import asyncio
import json
import logging
import ssl
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import aiohttp

from endpoint_picker.datalayer.prompt_reading import answered_tokens
from endpoint_picker.datalayer.token_answer import AnswerReading
from endpoint_picker.datalayer.tokenizing import Job, TokenizePlan, Tokenizing
from endpoint_picker.request import Tokens

#: Longest answer that is read, in bytes: a million tokens take six to seven.
MAX_ANSWER: Final = 8 << 20
#: Longest answer that is read in one go, in bytes: half a millisecond.
_AT_ONCE: Final = 65_536
#: Token ids of the tokenizer file that are taken over at a time, in the thread.
_IDS_AT_ONCE: Final = 8192
#: Connections to all servers together, and to each.
CONNECTIONS: Final = 128
CONNECTIONS_EACH: Final = 16

#: Answers are not decompressed.
_HEADERS: Final = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
_log = logging.getLogger(__name__)


class TokenClient:
    """The calls of one pool. For one event loop; `close` it before the loop ends."""

    def __init__(
        self, tokenizing: Tokenizing, loop: asyncio.AbstractEventLoop, *, clock: Callable[[], float]
    ) -> None:
        self._tokenizing = tokenizing
        self._loop = loop
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._plan: TokenizePlan | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._thread: ThreadPoolExecutor | None = None
        self._encode: Callable[[str], list[int]] | None = None
        tokenizing.work = self._work
        self.follow()

    def follow(self) -> None:
        """Use the plan in use from now on; calls under way go on."""
        plan = self._tokenizing.plan
        if plan == self._plan:
            return
        self._plan = plan
        self._release()
        if plan is None:
            return
        if plan.backend == "local":
            self._thread = ThreadPoolExecutor(1, "tokenizer")
            self._start(self._load(plan.file))
        elif plan.backend == "render" and plan.model_name:
            self._start(self._warm_up(plan))

    async def close(self) -> None:
        """End all calls."""
        self._tokenizing.work = lambda: None
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
            self._session = None
        self._release()

    def _release(self) -> None:
        self._encode = None
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = None
        if self._session is not None:
            self._start(self._session.close())
            self._session = None

    def _start(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def _work(self) -> None:
        outbox = self._tokenizing.outbox
        while outbox:
            self._start(self._call(outbox.popleft()))

    async def _call(self, job: Job) -> None:
        tokens, refused = None, False
        try:
            async with asyncio.timeout(job.timeout):
                if job.url:
                    tokens, refused = await self._post(job.url, job.body)
                else:
                    tokens = await self._in_thread(job.prompt.text or "")
        except Exception as error:  # the library for tokenizer files raises its own, without a common base
            _log.debug("no tokens: %s", type(error).__name__)
        now = self._clock()
        if tokens is None:
            self._tokenizing.failed(job, now, refused=refused)
        else:
            self._tokenizing.answered(job, tokens, now)

    async def _post(self, url: str, body: bytes) -> tuple[Any, bool]:
        """Return the tokens, or None and whether the server refused the prompt."""
        async with self._open().post(url, data=body, headers=_HEADERS, allow_redirects=False) as response:
            if response.status != 200:
                # 404 and 405: the server has no such call at all.
                return None, 400 <= response.status < 500 and response.status not in (404, 405, 408, 429)
            pieces, size = [], 0
            async for piece in response.content.iter_any():
                pieces.append(piece)
                size += len(piece)
                if size > MAX_ANSWER:
                    return None, True
        if size <= _AT_ONCE:
            return answered_tokens(b"".join(pieces)), True
        reading = AnswerReading(pieces)
        while not reading.done:
            reading.advance()
            await asyncio.sleep(0)
        return reading.tokens, True

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=CONNECTIONS, limit_per_host=CONNECTIONS_EACH, ssl=_tls(self._plan)
                ),
                timeout=aiohttp.ClientTimeout(),
                auto_decompress=False,
            )
        return self._session

    async def _in_thread(self, text: str) -> Any:
        if self._thread is None or self._encode is None:
            return None
        return await self._loop.run_in_executor(self._thread, _local_tokens, self._encode, text)

    async def _load(self, file: str) -> None:
        """Load the tokenizer file in the thread: it takes seconds."""
        assert self._thread is not None  # noqa: S101 - `follow` made it
        try:
            self._encode = await self._loop.run_in_executor(self._thread, _encoder, file)
        except Exception as error:  # the library raises its own, without a common base
            _log.error("the tokenizer file %s cannot be used: %s", file, error)

    async def _warm_up(self, plan: TokenizePlan) -> None:
        """Ask once, so that connection and tokenizer are ready for the first request."""
        try:
            async with asyncio.timeout(plan.timeout):
                body = json.dumps({"model": plan.model_name, "prompt": "."}).encode()
                await self._post(f"{plan.url.rstrip('/')}/v1/completions/render", body)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            _log.warning("the tokenizer at %s does not answer: %s", plan.url, type(error).__name__)


def _tls(plan: TokenizePlan | None) -> ssl.SSLContext | bool:
    """Return how an https server is verified; http needs nothing."""
    if plan is None or not plan.url.startswith("https://"):
        return True
    if plan.insecure_skip_verify:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context = ssl.create_default_context(cafile=plan.ca_cert_path or None)
    if plan.client_cert_path:
        context.load_cert_chain(plan.client_cert_path, plan.client_key_path or None)
    return context


def _local_tokens(encode: Callable[[str], list[int]], text: str) -> Tokens:
    """Return a text's tokens; the interpreter lets other threads run in between."""
    ids, found = encode(text), array("I")
    for at in range(0, len(ids), _IDS_AT_ONCE):
        found.extend(ids[at : at + _IDS_AT_ONCE])
    return Tokens(found.tobytes(), "local")


def _encoder(file: str) -> Callable[[str], list[int]]:
    """Return the encoding function of a tokenizer file (tokenizer.json)."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(file)

    def encode(text: str) -> list[int]:
        # The batch call lets the interpreter run other threads meanwhile; `encode` does not.
        ids: list[int] = tokenizer.encode_batch([text])[0].ids
        return ids

    return encode
