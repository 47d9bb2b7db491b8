"""The input of a decision: one request as plain values. No I/O."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Final

Timed = tuple[str, float, float]
"""Name, begin and end of a piece of work on a request, in seconds of the pool's clock."""

#: Attribute of a request whose model a rewrite changed: the name that the client sent.
ASKED_MODEL: Final = "asked-model"

Media = tuple[int, int, str]
"""First token, number of tokens and content hash of an image, a video or a piece of audio in a prompt."""


class Tokens:
    """The token ids of a request's prompt, as the model server makes them."""

    __slots__ = ("ids", "keys", "media", "reason", "salt")

    def __init__(self, ids: bytes, reason: str, *, salt: str = "", media: tuple[Media, ...] = ()) -> None:
        self.ids = ids
        """Four bytes each, little-endian; empty when they are not known."""
        self.reason = reason
        """Where they come from, or why they are not known: a word from a closed set."""
        self.salt = salt
        """The request's cache_salt: prompts of different salts share no blocks."""
        self.media = media
        """In the order of their positions."""
        self.keys: list[int] = []
        """Keys of the prompt's blocks in the pool's KV index, once they have been looked up."""


_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class InferenceRequest:
    """One request, as plugins see it."""

    if_available: ClassVar[bool] = False
    """The client wants an answer only if the picked endpoint holds the beginning of the prompt."""

    __slots__ = (
        "arrived_at",
        "attributes",
        "body_bytes",
        "chunks",
        "headers",
        "ids_at",
        "max_tokens",
        "model",
        "objective",
        "priority",
        "prompt",
        "prompt_bytes",
        "request_id",
        "state",
        "stream",
        "timed",
        "tokens",
    )

    def __init__(
        self,
        *,
        request_id: str,
        model: str = "",
        prompt: bytes = b"",
        stream: bool = False,
        objective: str = "",
        body_bytes: int = 0,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> None:
        self.arrived_at = 0.0
        """When the request had arrived, seconds of the pool's clock; 0.0 is not known."""
        self.request_id = request_id
        self.model = model
        """Model named in the body; "" when there is no body (GET /v1/models)."""
        self.prompt = prompt
        """Prompt material in the order in which the server sees it; equal prefixes are equal bytes.

        b"" when no plugin reads prompts (`Plugin.reads_prompt`).
        """
        self.ids_at = -1
        """Where the prompt's token ids begin in `prompt`, four bytes each, little-endian, to its end; -1: the
        prompt does not consist of token ids."""
        self.prompt_bytes = len(prompt)
        """Size of the prompt as text, an estimate where it is not laid out to its end."""
        self.stream = stream
        self.max_tokens = 0
        """Most tokens of the answer that the client asks for; 0 when it sets no limit."""
        self.state = ""
        """Id of the earlier response or of the conversation that the request goes on with; "" for none."""
        self.objective = objective
        """metadata.name of an InferenceObjective, from the request header; "" when none was sent and the
        priority table gives the model none."""
        self.priority = 0
        """Set by the scheduler from the priority table. A negative one may be shed."""
        self.body_bytes = body_bytes
        self.chunks: Sequence[bytes | memoryview] = ()
        """The body as it came; empty when the proxy does not show it."""
        self.tokens: Tokens | None = None
        """Written by the producer of the tokenised prompt; None before that."""
        self.attributes: dict[str, str] = {}
        """Facts that request readers found, by name."""
        self.headers = headers
        """Request headers by lower-case name, for plugins that read them; may be left empty."""
        self.timed: list[Timed] | None = None
        """Where plugins add what becomes a span of the decision (a queue, a prediction); None: not traced."""

    @property
    def body(self) -> bytes:
        """Return the whole body, for plugins that ask others about it."""
        if len(self.chunks) > 1:
            self.chunks = (b"".join(self.chunks),)
        return bytes(self.chunks[0]) if self.chunks else b""


class ConditionalRequest(InferenceRequest):
    """A request with `Prefer: if-available`."""

    __slots__ = ()
    if_available: ClassVar[bool] = True
