"""Gets the tokens of prompts, within a budget of time. Pure: the calls are made by the shell
(token_client.py).

A request whose tokens are known (from its body, or from an earlier equal prompt) does not wait. One whose
prompt extends a known prompt by little does not wait either: it takes the known tokens, and the whole prompt
is asked about for the next turn of the conversation. All others wait, at most for the budget.

When a call fails, or takes longer than the budget while no other one succeeds, the tokenizer is not
*trusted*: all waits end, and no request waits until a call has succeeded within the budget. Such calls are
made with prompts that come, one at a time. A tokenizer that does not answer costs one budget, not one a
request.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from endpoint_picker.datalayer.prompt_reading import Prompt, prompt_of, without_last
from endpoint_picker.request import InferenceRequest, Tokens

#: Calls under way at a time.
MAX_CALLS: Final = 256
#: Prompts whose tokens are kept, and bytes of them.
MAX_CACHED: Final = 8192
MAX_CACHED_BYTES: Final = 64 << 20
#: Tokens at the end of a known prompt that a longer one need not have: a chat template ends with the
#: beginning of an answer, and a tokenizer may join what follows with the last word.
LOOSE_END: Final = 8
#: Part of a prompt that a known beginning must cover for the request not to wait.
COVERED: Final = 0.8
#: Seconds between two calls of a tokenizer that is not trusted, and for which a server that failed is left
#: out.
PROBE_S: Final = 0.5
AVOID_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class TokenizePlan:
    """Who knows the tokens."""

    backend: Literal["servers", "render", "local", "none"] = "servers"
    budget: float = 0.05
    """Most seconds that a request waits."""
    timeout: float = 5.0
    """Seconds after which a call is given up; its late answer serves later requests."""
    media_timeout: float = 30.0
    """The same for prompts with images, whose servers fetch and read them first."""
    port: int = 0
    """Port of /tokenize on the pool's servers; 0 is the endpoint's own."""
    url: str = ""
    """Base of the render calls."""
    ca_cert_path: str = ""
    client_cert_path: str = ""
    client_key_path: str = ""
    insecure_skip_verify: bool = False
    file: str = ""
    """Tokenizer file of the local backend."""
    model_name: str = ""
    """Model that is asked about at start."""


class Job:
    """One call, and the requests that wait for it."""

    __slots__ = ("body", "digest", "is_done", "prompt", "sent_at", "server", "timeout", "url", "waiting")

    def __init__(self, prompt: Prompt, digest: bytes, now: float, timeout: float) -> None:
        self.prompt = prompt
        self.digest = digest
        self.sent_at = now
        self.timeout = timeout
        self.url = ""
        self.body = b""
        self.server = ""
        """Address of the pool's server that is asked, "" for another one."""
        self.waiting: list[Wait] = []
        self.is_done = False


class Wait:
    """A request that waits for its tokens."""

    __slots__ = ("instead", "is_over", "job", "note", "request", "until")

    def __init__(self, job: Job, request: InferenceRequest, until: float, instead: Tokens | None) -> None:
        self.job = job
        self.request = request
        self.until = until
        self.instead = instead
        """Known tokens of its beginning."""
        self.is_over = False
        self.note: Any = None
        """Any value of the caller's."""


class TokenCache:
    """Tokens of prompts by their digest, the least recently used dropped first."""

    __slots__ = ("_bytes", "_entries", "_most_bytes")

    def __init__(self, most_bytes: int = MAX_CACHED_BYTES) -> None:
        self._entries: OrderedDict[bytes, Tokens] = OrderedDict()
        self._bytes = 0
        self._most_bytes = most_bytes

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Return the bytes of the ids kept."""
        return self._bytes

    def get(self, digest: bytes) -> Tokens | None:
        """Return a prompt's tokens."""
        found = self._entries.get(digest)
        if found is not None:
            self._entries.move_to_end(digest)
        return found

    def put(self, digest: bytes, tokens: Tokens) -> None:
        """Keep a prompt's tokens."""
        before = self._entries.pop(digest, None)
        if before is not None:
            self._bytes -= len(before.ids)
        self._entries[digest] = tokens
        self._bytes += len(tokens.ids)
        while len(self._entries) > MAX_CACHED or self._bytes > self._most_bytes:
            _digest, dropped = self._entries.popitem(last=False)
            self._bytes -= len(dropped.ids)

    def longest(self, digests: Sequence[bytes]) -> tuple[int, Tokens] | None:
        """Return how many leading pieces make up the longest known prompt, and its tokens."""
        for at in range(len(digests) - 1, -1, -1):
            found = self.get(digests[at])
            if found is not None:
                return at + 1, found
        return None


class Tokenizing:
    """The calls, the cache and the trust of one pool."""

    __slots__ = (
        "_avoided",
        "_by_digest",
        "_last_success",
        "_probe_at",
        "_released",
        "_turn",
        "_waits",
        "cache",
        "calls",
        "failures",
        "is_trusted",
        "outbox",
        "plan",
        "results",
        "wake",
        "work",
    )

    def __init__(self, wake: Callable[[], None]) -> None:
        self.plan: TokenizePlan | None = None
        self.cache = TokenCache()
        self._by_digest: dict[bytes, Job] = {}
        self._waits: deque[Wait] = deque()
        """In the order in which they end."""
        self._released: list[Wait] = []
        self._last_success = float("-inf")
        self._probe_at = float("-inf")
        self._avoided: dict[str, float] = {}
        self._turn = 0
        self.is_trusted = True
        self.outbox: deque[Job] = deque()
        """Calls to make; the shell takes them and reports by `answered` or `failed`."""
        self.work: Callable[[], None] = lambda: None
        """Called when `outbox` has got a call."""
        self.wake = wake
        """Called when waits are over before their time."""
        self.calls = 0
        self.failures = 0
        self.results: Counter[str] = Counter()
        """Requests by `Tokens.reason`."""

    def use(self, plan: TokenizePlan | None) -> None:
        """Ask by this plan from now on; None: tokens are not wanted."""
        if plan != self.plan:
            self.plan = plan
            self.cache = TokenCache()
            self.is_trusted = True
            self._avoided.clear()

    @property
    def under_way(self) -> int:
        """Return how many calls are under way."""
        return len(self._by_digest)

    def ask(self, request: InferenceRequest, servers: Sequence[str], now: float) -> Wait | None:
        """Write the request's tokens, or return the wait for them. `servers` are addresses of the pool."""
        plan = self.plan
        if plan is None:
            return self._settle(request, Tokens(b"", "no-tokenizer"))
        found = prompt_of(request)
        if found is None:
            return self._settle(request, Tokens(b"", "other-api"))
        if isinstance(found, Tokens):
            return self._settle(request, found)
        if plan.backend == "none":
            return self._settle(request, Tokens(b"", "no-tokenizer"))
        if plan.backend == "local" and found.is_chat:
            return self._settle(request, Tokens(b"", "chat-template"))
        if plan.backend == "servers" and found.has_media:
            # Its ids leave open where an image's tokens are, and which image they stand for.
            return self._settle(request, Tokens(b"", "media"))
        digests = found.digests()
        if not digests:
            return self._settle(request, Tokens(b"", "other-api"))
        known = self.cache.get(digests[-1])
        if known is not None:
            return self._settle(request, Tokens(known.ids, "cache", salt=found.salt, media=known.media))
        return self._ask(request, found, digests, servers, now, plan)

    def _ask(
        self,
        request: InferenceRequest,
        prompt: Prompt,
        digests: list[bytes],
        servers: Sequence[str],
        now: float,
        plan: TokenizePlan,
    ) -> Wait | None:
        beginning = self._beginning(prompt, digests)
        job = self._by_digest.get(digests[-1])
        if job is None:
            job, refusal = self._job(request, prompt, digests[-1], servers, now, plan)
            if job is None:
                return self._settle(request, beginning[1] if beginning else Tokens(b"", refusal))
        if beginning is not None and beginning[0] >= COVERED:
            return self._settle(request, beginning[1])
        instead = None if beginning is None else beginning[1]
        if not self.is_trusted:
            return self._settle(request, instead or Tokens(b"", "not-trusted"))
        wait = Wait(job, request, now + plan.budget, instead)
        job.waiting.append(wait)
        self._waits.append(wait)
        return wait

    def _beginning(self, prompt: Prompt, digests: list[bytes]) -> tuple[float, Tokens] | None:
        """Return which part of the prompt a known one covers, and that one's tokens."""
        longest = self.cache.longest(digests[:-1])
        if longest is None:
            return None
        pieces, known = longest
        tokens = without_last(known, LOOSE_END)
        tokens.salt = prompt.salt
        size = sum(map(len, prompt.pieces))
        return sum(map(len, prompt.pieces[:pieces])) / size, tokens

    def _job(
        self,
        request: InferenceRequest,
        prompt: Prompt,
        digest: bytes,
        servers: Sequence[str],
        now: float,
        plan: TokenizePlan,
    ) -> tuple[Job | None, str]:
        """Return a new call, or why there is none."""
        if len(self._by_digest) >= MAX_CALLS:
            return None, "busy"
        if not self.is_trusted:
            if now < self._probe_at:
                return None, "not-trusted"
            self._probe_at = now + PROBE_S
        job = Job(prompt, digest, now, plan.media_timeout if prompt.has_media else plan.timeout)
        if plan.backend == "servers":
            job.server = self._server(servers, now)
            if not job.server:
                return None, "no-server"
            host = job.server.rpartition(":")[0] if plan.port else ""
            job.url = f"http://{f'{host}:{plan.port}' if plan.port else job.server}/tokenize"
            job.body = prompt.tokenize_call()
        elif plan.backend == "render":
            kind = "chat/completions" if prompt.is_chat else "completions"
            job.url = f"{plan.url.rstrip('/')}/v1/{kind}/render"
            job.body = request.body
        self._by_digest[digest] = job
        self.calls += 1
        self.outbox.append(job)
        self.work()
        return job, ""

    def _server(self, servers: Sequence[str], now: float) -> str:
        """Return the next server in turn that has not failed lately; "" when there is none."""
        for _ in range(len(servers)):
            self._turn += 1
            server = servers[self._turn % len(servers)]
            if self._avoided.get(server, now) <= now:
                return server
        self._turn += 1
        return servers[self._turn % len(servers)] if servers else ""

    def _settle(self, request: InferenceRequest, tokens: Tokens) -> Wait | None:
        """Give the request its tokens, if any: it does not wait."""
        request.tokens = tokens
        self.results[tokens.reason] += 1
        return None

    # What the shell reports.

    def answered(self, job: Job, tokens: Tokens, now: float) -> None:
        """Take the tokens of a call's prompt."""
        self._by_digest.pop(job.digest, None)
        job.is_done = True
        self.cache.put(job.digest, tokens)
        plan = self.plan
        if plan is not None and now - job.sent_at <= plan.budget:
            self._last_success = now
            self.is_trusted = True
            self._avoided.pop(job.server, None)
        for wait in job.waiting:
            if not wait.is_over:
                self._end(wait, Tokens(tokens.ids, tokens.reason, salt=job.prompt.salt, media=tokens.media))
        job.waiting.clear()

    def failed(self, job: Job, now: float, *, refused: bool) -> None:
        """Note a call without tokens; `refused`: the server answered, and does not like the prompt."""
        self._by_digest.pop(job.digest, None)
        job.is_done = True
        self.failures += 1
        reason = "refused" if refused else "failed"
        for wait in job.waiting:
            if not wait.is_over:
                self._end(wait, wait.instead or Tokens(b"", reason))
        job.waiting.clear()
        if not refused:
            self._avoid(job, now)
            self._distrust(now)

    # Waits.

    def advance(self, now: float) -> tuple[list[Wait], float | None]:
        """Return the waits that are over, and when the next one ends."""
        while self._waits:
            wait = self._waits[0]
            if not wait.is_over:
                if wait.until > now:
                    break
                self._end(wait, wait.instead or Tokens(b"", "budget"))
                if self._last_success < wait.job.sent_at:
                    self._avoid(wait.job, now)
                    self._distrust(now)
            self._waits.popleft()
        released, self._released = self._released, []
        return released, self._waits[0].until if self._waits else None

    def forget(self, wait: Wait) -> None:
        """Note that a request does not wait any more; its call goes on."""
        wait.is_over = True

    def _avoid(self, job: Job, now: float) -> None:
        if job.server:
            if len(self._avoided) >= 4096:
                self._avoided.clear()
            self._avoided[job.server] = now + AVOID_S

    def _distrust(self, now: float) -> None:
        """End all waits; none begins before a call succeeds."""
        if self.is_trusted:
            self.is_trusted = False
            self._probe_at = now
        for wait in self._waits:
            if not wait.is_over:
                self._end(wait, wait.instead or Tokens(b"", "not-trusted"))

    def _end(self, wait: Wait, tokens: Tokens) -> None:
        wait.is_over = True
        self._settle(wait.request, tokens)
        self._released.append(wait)
        self.wake()
