"""What of a request's body decides on its tokens, and the calls that ask a model server for them. Pure.

Of the OpenAI APIs, completions and chat have calls that return a prompt's tokens: vLLM's `/tokenize`, and its
`/v1/completions/render` and `/v1/chat/completions/render`, which also tell of images. Only the parts of the
body that are needed are read, the others are skipped as bytes.
"""

from array import array
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from xxhash import xxh3_128_digest

from endpoint_picker.datalayer.kv_events import TOKEN_BYTES
from endpoint_picker.request import InferenceRequest, Media, Tokens
from ext_proc.body import material

#: Bytes of a completions prompt in a piece of `Prompt.pieces`.
PIECE_BYTES: Final = 1024
#: Longest body that is read, in bytes, and most messages of a chat: the event loop waits for them.
MAX_BODY: Final = 2 << 20
#: Longest list of token ids, in bytes of JSON, that is read here: longer ones come with the prompt material.
_MAX_LIST: Final = 131_072
MAX_MESSAGES: Final = 4096
#: Types of a message's parts that are no text.
MEDIA_TYPES: Final = ("image_url", "video_url", "audio_url", "input_audio", "input_image")
#: Most tokens that are taken from an answer.
MAX_TOKENS: Final = 1 << 20

_CHAT, _COMPLETION = "/chat/completions", "/completions"
_EMPTY: Final = msgspec.Raw(b"")
#: What /tokenize takes of a chat beside the messages.
_CHAT_FIELDS: Final = (
    "tools", "chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message",
    "add_special_tokens", "mm_processor_kwargs",
)  # fmt: skip


class _Body(msgspec.Struct):
    prompt: msgspec.Raw = _EMPTY
    messages: msgspec.Raw = _EMPTY
    cache_salt: str | None = None
    tools: msgspec.Raw = _EMPTY
    chat_template: msgspec.Raw = _EMPTY
    chat_template_kwargs: msgspec.Raw = _EMPTY
    reasoning_effort: msgspec.Raw = _EMPTY
    documents: msgspec.Raw = _EMPTY
    add_generation_prompt: msgspec.Raw = _EMPTY
    continue_final_message: msgspec.Raw = _EMPTY
    add_special_tokens: msgspec.Raw = _EMPTY
    mm_processor_kwargs: msgspec.Raw = _EMPTY


_read_body: Final = msgspec.json.Decoder(_Body).decode
_read_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read_text: Final = msgspec.json.Decoder(str).decode
read_ids: Final = msgspec.json.Decoder(list[int]).decode
_write: Final = msgspec.json.Encoder().encode


class Prompt:
    """A prompt whose tokens can be asked for."""

    __slots__ = ("_body", "has_media", "is_chat", "model", "pieces", "salt", "text")

    def __init__(
        self, body: _Body, model: str, pieces: Sequence[bytes], text: str | None, *, has_media: bool
    ) -> None:
        self._body = body
        self.model = model
        self.is_chat = text is None
        self.pieces = pieces
        """The prompt's JSON in pieces: equal prompts have equal pieces, longer ones begin with the same."""
        self.text = text
        """The prompt of a completion."""
        self.salt = body.cache_salt or ""
        self.has_media = has_media

    def digests(self) -> list[bytes]:
        """Return a chained digest for each piece: what the prompt is up to the piece's end."""
        body = self._body
        settings = [getattr(body, name) for name in _CHAT_FIELDS]
        settings += [body.reasoning_effort, body.documents]
        digest = xxh3_128_digest(b"\0".join([self.model.encode("utf-8", "replace"), *map(bytes, settings)]))
        found = []
        for piece in self.pieces:
            digest = xxh3_128_digest(digest + piece)
            found.append(digest)
        return found

    def tokenize_call(self) -> bytes:
        """Return the body of a call of /tokenize."""
        body = self._body
        fields: dict[str, Any] = {"model": self.model}
        if not self.is_chat:
            fields["prompt"] = body.prompt
            if bytes(body.add_special_tokens):
                fields["add_special_tokens"] = body.add_special_tokens
            return _write(fields)
        fields["messages"] = body.messages
        for name in _CHAT_FIELDS:
            value = getattr(body, name)
            if bytes(value):
                fields[name] = value
        return _write(fields)


def prompt_of(request: InferenceRequest) -> Prompt | Tokens | None:
    """Return the request's prompt; its tokens when it consists of them; None when no call can tell them.

    Tokens without ids, and with a reason, stand for a prompt that is too long to be read.
    """
    path = request.headers.get(":path", "").partition("?")[0]
    is_chat = path.endswith(_CHAT)
    if not (is_chat or path.endswith(_COMPLETION)):
        return None
    if request.ids_at >= 0:
        return None if is_chat else _given(request)
    if request.body_bytes > MAX_BODY:
        return Tokens(b"", "too-long")
    try:
        body = _read_body(request.body)
        if is_chat:
            messages = _read_list(body.messages)
            if len(messages) > MAX_MESSAGES:
                return Tokens(b"", "too-long")
            pieces = [bytes(each) for each in messages]
            has_media = any(f'"{each}"'.encode() in request.body for each in MEDIA_TYPES)
            return Prompt(body, request.model, pieces, None, has_media=has_media)
        return _completion(body, request.model)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _given(request: InferenceRequest) -> Tokens | None:
    """Return the token ids that the prompt consists of: those that the prompt material has."""
    at = request.ids_at
    salt = material.salt_of(request.prompt[:at])
    if salt is None:
        return None
    end = len(request.prompt) - (len(request.prompt) - at) % TOKEN_BYTES
    return Tokens(request.prompt[at:end], "prompt", salt=salt)


def _completion(body: _Body, model: str) -> Prompt | Tokens | None:
    raw = bytes(body.prompt).strip()
    if raw[:1] == b"[":
        items = _read_list(body.prompt)
        if len(items) == 1 and bytes(items[0]).lstrip()[:1] in (b"[", b'"'):
            raw = bytes(items[0]).strip()  # a list of one prompt
        if raw[:1] == b"[":
            if len(raw) > _MAX_LIST:
                return Tokens(b"", "too-long")
            return tokens_of(read_ids(raw), "prompt", salt=body.cache_salt or "")
    text = _read_text(raw)
    pieces = [raw[start : start + PIECE_BYTES] for start in range(0, len(raw), PIECE_BYTES)]
    return Prompt(body, model, pieces, text, has_media=False)


def tokens_of(
    ids: Sequence[int], reason: str, *, salt: str = "", media: tuple[Media, ...] = ()
) -> Tokens | None:
    """Return the tokens; None when they are no token ids."""
    try:
        return Tokens(array("I", ids).tobytes(), reason, salt=salt, media=media)
    except (OverflowError, TypeError):
        return None


class _Span(msgspec.Struct):
    offset: int
    length: int


class Features(msgspec.Struct):
    """Images and the like in an answer: by kind their hashes, and where their tokens stand."""

    mm_hashes: dict[str, list[str]] = {}
    mm_placeholders: dict[str, list[_Span]] = {}


class _Answer(msgspec.Struct):
    tokens: list[int] | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    features: Features | None = None


_read_answer: Final = msgspec.json.Decoder(_Answer).decode
_read_answers: Final = msgspec.json.Decoder(list[_Answer]).decode


def answered_tokens(answer: bytes) -> Tokens | None:
    """Return the tokens in an answer of /tokenize or of a render call; None when it has none, or too many.

    Raises ValueError when it is no such answer.
    """
    try:
        found = _read_answers(answer)[0] if answer.lstrip()[:1] == b"[" else _read_answer(answer)
    except (msgspec.DecodeError, UnicodeError, RecursionError, IndexError) as error:
        raise ValueError("no answer of a tokenizer") from error
    lists = [each for each in (found.tokens, found.token_ids, found.prompt_token_ids) if each is not None]
    if not lists:
        raise ValueError("the answer has no tokens")
    ids = next(filter(None, lists), None)
    if not ids or len(ids) > MAX_TOKENS:
        return None
    tokens = tokens_of(ids, "server", media=media_of(found.features))
    if tokens is None:
        raise ValueError("the answer's tokens are no token ids")
    return tokens


def media_of(features: Features | None) -> tuple[Media, ...]:
    """Return the images and the like that an answer tells of."""
    if features is None:
        return ()
    found = []
    for kind, hashes in features.mm_hashes.items():
        for name, span in zip(hashes, features.mm_placeholders.get(kind, ()), strict=False):
            if span.offset >= 0 and 0 < span.length <= MAX_TOKENS:
                found.append((span.offset, span.length, name))
    return tuple(sorted(found))


def without_last(tokens: Tokens, count: int) -> Tokens:
    """Return the tokens without the last ones."""
    ids = tokens.ids[: -count * TOKEN_BYTES]
    end = len(ids) // TOKEN_BYTES
    return Tokens(
        ids,
        "prefix",
        salt=tokens.salt,
        media=tuple(each for each in tokens.media if each[0] + each[1] <= end),
    )
