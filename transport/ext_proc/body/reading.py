"""Reads a request body: what routing needs of it. Pure.

A small body is read in one go when it is whole. A large one is read in bounded steps while its pieces come,
so that no other request waits for it. Both ways give the same answer.
"""

import json
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final, Protocol

import msgspec

from ext_proc.body.api import VALUE_BYTES, Api, Fields, Form
from ext_proc.body.encodings import ENCODINGS, BrokenEncodingError, Decoder
from ext_proc.body.frames import FrameScanner
from ext_proc.body.material import MESSAGES, Ids, Value, bounded, few, ids_at
from ext_proc.body.multipart import MultipartScanner
from ext_proc.body.pooling import OTHER
from ext_proc.body.scan import NotReadError, Scanner, Span
from ext_proc.wire import Held

#: Bodies up to this size, in bytes, are read in one go.
WHOLE_BYTES: Final = 640 * 1024
#: Of these, those up to this size have all their keys listed; of larger ones only those asked for are.
_SMALL_BYTES: Final = 16_384
#: Prompt material laid out in one step: pieces, and bytes.
_STEP_PIECES: Final = 1024
_STEP_BYTES: Final = 256 * 1024
#: Longest model name, in characters. The name becomes a key in caches and metrics.
MAX_MODEL: Final = 1024
#: Larger limits of tokens are read as none.
MAX_TOKENS: Final = 100_000_000
#: Longest name of state that is read, in characters.
MAX_STATE: Final = 256

_as_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_OBJECTS: Final = list[dict[str, msgspec.Raw]]
_as_text: Final = msgspec.json.Decoder(str).decode


class InvalidBodyError(Exception):
    """The body cannot be routed; the text is one sentence for the client."""

    def __init__(
        self, text: str, param: str | None = None, *, too_large: bool = False, unsupported: bool = False
    ) -> None:
        super().__init__(text)
        self.param = param
        """The field at fault, if it is one."""
        self.too_large = too_large
        """The body is too large to be read, rather than malformed."""
        self.unsupported = unsupported
        """The body is in an encoding that is not read."""


class ParsedBody:
    """What a request body says about routing."""

    __slots__ = ("decoded_bytes", "ids_at", "max_tokens", "model", "model_span", "prompt", "state", "stream")

    def __init__(self) -> None:
        self.model = ""
        """"" when the body names none and its API demands none."""
        self.prompt = b""
        """Prompt material: requests whose tokens begin alike have prompts that begin alike."""
        self.ids_at = -1
        """Where the token ids begin in `prompt` that it consists of; -1: it does not. See `Ids`."""
        self.stream = False
        self.max_tokens = 0
        """Most tokens of the answer; 0 when the body sets no limit."""
        self.state = ""
        """Id of an earlier response or of a conversation that the request goes on with; "" without one."""
        self.model_span: tuple[int, int] | None = None
        """Where the model's value stands in the body, decoded; None: unknown, `model_span` finds it."""
        self.decoded_bytes = 0
        """Size of an encoded body when decoded."""


class FieldScanner(Protocol):
    """Finds the fields of a body in bounded steps; `scan.Scanner` is the one of JSON."""

    fields: dict[str, Span]
    done: bool
    error: NotReadError | None

    @property
    def starved(self) -> bool:
        """`advance` has nothing to do until more bytes come."""
        ...

    def feed(self, piece: Held) -> None:
        """Take the next bytes."""
        ...

    def end(self) -> None:
        """Note that there are no more bytes."""
        ...

    def advance(self) -> None:
        """Do one bounded step."""
        ...


def read(
    api: Api | None, body: bytes, *, prompt: bool = True, boundary: bytes = b""
) -> "ParsedBody | Reading":
    """Read a whole, small body, of a call to `api` or, with None, to a path of no known API.

    Return what it says, or, when its prompt is much work, a `Reading` to go on with. Without `prompt` no
    prompt material is laid out. Raises InvalidBodyError.
    """
    used = OTHER if api is None else api
    if used.form is Form.JSON:
        try:
            fields = _fields_of(used, body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass  # malformed, or JSON that only some read (NaN, half a surrogate pair): the scanner decides
        else:
            parsed = interpret(used, fields)
            if not prompt:
                return parsed
            pieces = used.layout(fields)
            kept: list[bytes] = []
            size = 0
            for piece in pieces:
                kept.append(piece)
                size += len(piece)
                if size >= _STEP_BYTES or len(kept) >= _STEP_PIECES:
                    return Reading(api, laying_out=(parsed, bounded(pieces, size, len(kept)), kept))
            parsed.prompt = kept[0] if len(kept) == 1 else b"".join(kept)
            if kept and type(kept[-1]) is Ids:
                parsed.prompt, parsed.ids_at = b"".join(kept), ids_at(kept)
            return parsed
    reading = Reading(api, prompt=prompt, boundary=boundary)
    reading.feed(body)
    reading.end()
    if len(body) <= _SMALL_BYTES:
        while not reading.done:
            reading.advance()
    return reading.result() if reading.done else reading


def _fields_of(api: Api, body: bytes) -> Fields:
    if len(body) <= _SMALL_BYTES:
        return {key: Value(bytes(raw)) for key, raw in _as_fields(body).items() if key in api.limits}
    if MESSAGES in api.limits and few(body):
        try:
            found = _decoder(api, _OBJECTS).decode(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass  # they are no list of objects, or the body is malformed
        else:
            return {
                key: Value(b"", listed=raw) if key == MESSAGES else Value(bytes(raw))
                for key in api.limits
                if (raw := getattr(found, key)) is not msgspec.UNSET
            }
    found = _decoder(api, msgspec.Raw).decode(body)
    return {key: Value(bytes(raw)) for key in api.limits if (raw := getattr(found, key)) is not msgspec.UNSET}


@cache
def _decoder(api: Api, messages: Any) -> "msgspec.json.Decoder[Any]":
    """Return what decodes the keys that are asked for, the messages as the given type."""
    keys = [
        (key, (messages if key == MESSAGES else msgspec.Raw) | msgspec.UnsetType, msgspec.UNSET)
        for key in api.limits
    ]
    return msgspec.json.Decoder(msgspec.defstruct("Body", keys))


class Reading:
    """The reading of one body that takes more than one step."""

    __slots__ = (
        "_api",
        "_decoded",
        "_decoder",
        "_decoding",
        "_encoded",
        "_ended",
        "_error",
        "_kept",
        "_limit",
        "_parsed",
        "_pieces",
        "_prompt",
        "_scanner",
        "done",
    )

    def __init__(
        self,
        api: Api | None,
        *,
        prompt: bool = True,
        decoder: Decoder | None = None,
        limit: int = 0,
        boundary: bytes = b"",
        laying_out: tuple[ParsedBody, Iterator[bytes], list[bytes]] | None = None,
    ) -> None:
        """`decoder` is that of the body's encoding; decoded it may have `limit` bytes at most."""
        self._api = OTHER if api is None else api
        self._prompt = prompt
        self._decoder = decoder
        self._limit = limit
        self._decoded = 0
        self._encoded: list[Held] = []
        self._decoding: Iterator[bytes] = iter(())
        self._ended = False
        self._error: InvalidBodyError | None = None
        self._scanner: FieldScanner | None = None
        self._parsed: ParsedBody | None = None
        self._pieces: Iterator[bytes] = iter(())
        self._kept: list[bytes] = []
        self.done = False
        if laying_out is not None:
            self._parsed, self._pieces, self._kept = laying_out
        elif self._api.form is Form.JSON:
            self._scanner = Scanner(self._api.limits)
        elif self._api.form is Form.MULTIPART:
            self._scanner = MultipartScanner(self._api.limits, boundary)
        else:
            self._scanner = FrameScanner(self._api)

    def feed(self, piece: Held) -> None:
        """Take the next bytes of the body."""
        if self._scanner is None or self.done:
            return
        if self._decoder is None:
            self._scanner.feed(piece)
        else:
            self._encoded.append(piece)

    def end(self) -> None:
        """Note that the body is whole."""
        self._ended = True
        if self._scanner is not None and self._decoder is None:
            self._scanner.end()

    @property
    def starved(self) -> bool:
        """`advance` has nothing to do until more bytes come."""
        if self.done or self._ended or self._scanner is None:
            return False
        return self._scanner.starved and (self._decoder is None or not self._encoded)

    def advance(self) -> None:
        """Do one step, of a few milliseconds at most."""
        if self.done:
            return
        try:
            if self._scanner is None:
                self._step_layout()
            else:
                self._step_scan(self._scanner)
        except InvalidBodyError as error:
            self._finish(error)
        except NotReadError as error:
            self._finish(InvalidBodyError(f"the request body is {error}"))

    def result(self) -> ParsedBody:
        """Return what the body says. Raises InvalidBodyError."""
        if self._error is not None:
            raise self._error
        assert self._parsed is not None  # noqa: S101 - `done` says so
        return self._parsed

    def _finish(self, error: InvalidBodyError | None) -> None:
        self.done, self._error = True, error
        self._encoded.clear()
        self._decoding = iter(())
        self._pieces = iter(())

    def _step_scan(self, scanner: FieldScanner) -> None:
        if scanner.starved and self._decoder is not None:
            self._decode(self._decoder, scanner)
        scanner.advance()
        if not scanner.done:
            return
        self._scanner = None
        if scanner.error is not None:
            if self._api.needs_model:
                raise scanner.error
            fields: Fields = {}
        else:
            fields = {key: Value(span.raw, whole=span.whole) for key, span in scanner.fields.items()}
        self._parsed = interpret(self._api, fields)
        model = scanner.fields.get("model")
        if model is not None and self._api.form is not Form.GRPC:
            self._parsed.model_span = model.start, model.end
        self._parsed.decoded_bytes = self._decoded
        if self._prompt:
            self._pieces = bounded(self._api.layout(fields))
        else:
            self._finish(None)

    def _decode(self, decoder: Decoder, scanner: FieldScanner) -> None:
        """Pass on the next decoded piece."""
        try:
            piece = next(self._decoding, None)
            while piece is None:
                if not self._encoded:
                    if self._ended:
                        scanner.end()
                    return
                self._decoding = decoder.feed(bytes(self._encoded.pop(0)))
                piece = next(self._decoding, None)
        except BrokenEncodingError as error:
            raise NotReadError(f"not in its content-encoding: {error}") from None
        self._decoded += len(piece)
        if self._decoded > self._limit:
            text = f"the request body is larger than {self._limit} bytes when decoded"
            raise InvalidBodyError(text, too_large=True)
        scanner.feed(piece)

    def _step_layout(self) -> None:
        if _lay_out(self._pieces, self._kept):
            assert self._parsed is not None  # noqa: S101 - set before
            self._parsed.prompt = b"".join(self._kept)
            self._parsed.ids_at = ids_at(self._kept)
            self._finish(None)


def _lay_out(pieces: Iterator[bytes], kept: list[bytes]) -> bool:
    """Take the pieces of one step; return whether they were the last."""
    size = 0
    for number, piece in enumerate(pieces, 1):
        kept.append(piece)
        size += len(piece)
        if number >= _STEP_PIECES or (size >= _STEP_BYTES and number > 1):
            return False
    return True


def interpret(api: Api, fields: Fields) -> ParsedBody:
    """Return what the fields say, without the prompt. Raises InvalidBodyError."""
    parsed = ParsedBody()
    given = fields.get("model")
    model = "" if given is None else _text(given)
    if model is None or len(model) > MAX_MODEL:
        text = f"the model must be text of at most {MAX_MODEL} characters"
        raise InvalidBodyError(text, "model")
    if not model and api.needs_model:
        if given is not None and not given.raw.startswith((b'"', b"null")):
            raise InvalidBodyError("the model must be a string", "model")
        raise InvalidBodyError("model not found in request body", "model")
    parsed.model = model
    stream = fields.get("stream")
    parsed.stream = stream is not None and stream.raw == b"true"
    for key, inner in api.token_keys:
        value = fields.get(key)
        if value is not None:
            limit = _count(value.raw, inner)
            if limit:
                parsed.max_tokens = limit
                break
    for key in api.state:
        value = fields.get(key)
        if value is not None:
            parsed.state = _id_of(value)
            if parsed.state:
                break
    return parsed


def _text(value: Value) -> str | None:
    """Return the text of a string, "" for null and other kinds of value; None for text that is none."""
    if not value.raw.startswith(b'"'):
        return ""
    if not value.whole:
        return None
    try:
        return _as_text(value.raw)
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _count(raw: bytes, inner: str) -> int:
    """Return a limit of tokens, perhaps of an object's key; 0 for none, and for one above MAX_TOKENS."""
    if inner:
        try:
            raw = bytes(_as_fields(raw).get(inner, b""))
        except (msgspec.MsgspecError, RecursionError):
            return 0
    return int(raw) if raw.isdigit() and len(raw) < 10 and int(raw) <= MAX_TOKENS else 0


def _id_of(value: Value) -> str:
    """Return an id: text, or an object that has it under "id"."""
    raw = value.raw
    if raw.startswith(b"{"):
        try:
            raw = bytes(_as_fields(raw).get("id", b""))
        except (msgspec.MsgspecError, RecursionError):
            return ""
    try:
        found = json.loads(raw) if raw.startswith(b'"') else ""
    except ValueError:
        return ""
    return found if isinstance(found, str) and len(found) <= MAX_STATE else ""


def model_span(body: Iterable[Held]) -> tuple[int, int] | None:
    """Return where the value of `model` stands in a JSON body that is read in one go; None without one."""
    scanner = Scanner({"model": VALUE_BYTES})
    for chunk in body:
        scanner.feed(chunk)
    scanner.end()
    while not scanner.done:
        scanner.advance()
    found = scanner.fields.get("model")
    return None if found is None or scanner.error is not None else (found.start, found.end)


def unread_encoding(name: str) -> InvalidBodyError:
    """Return the error of a body in an encoding that is not read."""
    known = ", ".join(ENCODINGS)
    text = f'the request body has the content-encoding "{name[:64]}", which is not read; send one of: {known}'
    return InvalidBodyError(text, unsupported=True)
