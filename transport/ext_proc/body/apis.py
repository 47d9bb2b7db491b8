"""The inference APIs: one table from the path of a request to how its body is read. Pure.

A body is read in one go on the event loop while all other requests wait: the limits here bound that time.
Bodies are never changed.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from ext_proc.body import openai

#: Bodies above this size, in bytes, have their values counted before they are parsed: in memory, a small JSON
#: value takes many times its bytes.
_LARGE_BYTES: Final = 1024 * 1024
#: Most commas, opening brackets and (twice) colons of a large body: a bound on its values, half a second and
#: some 100 MB at worst. A million token ids, or 20 MB of source text, hold fewer.
_MAX_VALUES: Final = 1_500_000
#: Most digits of a whole number that is read exactly: the time of int() grows with the square of the digits.
_MAX_DIGITS: Final = 64
#: Longest model name, in characters. The name becomes a key in caches and metrics.
MAX_MODEL: Final = 1024
#: Keys of the longest answer: chat, completions, responses. The first that is present counts.
_LIMITS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")
#: Larger limits are read as none.
MAX_TOKENS: Final = 100_000_000
#: json.loads would first guess the encoding; JSON between systems is UTF-8 (RFC 8259, 8.1).
_decode: Final = json.JSONDecoder(
    parse_int=lambda digits: int(digits) if len(digits) <= _MAX_DIGITS else float(digits)
).decode


class InvalidBodyError(Exception):
    """The body cannot be routed; the text is one sentence for the client."""


class ParsedBody:
    """What a request body says about routing."""

    __slots__ = ("max_tokens", "model", "prompt", "stream")

    def __init__(self, model: str, prompt: bytes, stream: bool, max_tokens: int = 0) -> None:
        self.model = model
        self.prompt = prompt
        """Prompt material: requests whose tokens begin alike have prompts that begin alike."""
        self.stream = stream
        self.max_tokens = max_tokens
        """Most tokens of the answer; 0 when the body sets no limit."""


class Api(NamedTuple):
    """One API: the body of a call is a JSON object with a model."""

    suffix: str
    """How its paths end."""
    field: str
    """Key of the prompt in the body."""
    prompt: Callable[[dict[str, object]], Iterator[bytes]]
    """Lays out the prompt of a body that has the field, as pieces of prompt material."""


#: The first match counts, so a longer suffix stands before a shorter one that it ends with.
APIS: Final = (
    Api("/chat/completions", "messages", openai.chat),
    Api("/completions", "prompt", openai.completion),
    Api("/responses", "input", openai.responses),
    Api("/embeddings", "input", openai.embedding),
)


def api_of(path: str) -> Api | None:
    """Return the API of a path without query; None for a path of no known API."""
    for api in APIS:
        if path.endswith(api.suffix):
            return api
    return None


def parse(api: Api | None, body: bytes) -> ParsedBody:
    """Read a JSON body, of a call to `api` or, with None, to a path of no known API.

    Raises InvalidBodyError when the body is not a JSON object or names no model.
    """
    if not body:
        raise InvalidBodyError("the request has no body; send a JSON object with a model")
    if len(body) > _LARGE_BYTES and _values(body) > _MAX_VALUES:
        raise InvalidBodyError("the request body holds too many values")
    try:
        document = _decode(body.decode())
    except RecursionError:
        raise InvalidBodyError("the request body is nested too deeply") from None
    except ValueError as error:
        message = f"the request body is not JSON: {error}"
        raise InvalidBodyError(message) from None
    if not isinstance(document, dict):
        raise InvalidBodyError("the request body is not a JSON object")
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidBodyError("model not found in request body")
    if len(model) > MAX_MODEL or not _is_text(model):
        message = f"the model must be text of at most {MAX_MODEL} characters"
        raise InvalidBodyError(message)
    try:
        prompt = openai.bounded(_material(api, document))
    except RecursionError:
        raise InvalidBodyError("the request body is nested too deeply") from None
    return ParsedBody(model, prompt, document.get("stream") is True, _max_tokens(document))


def _max_tokens(document: dict[str, object]) -> int:
    for key in _LIMITS:
        value = document.get(key)
        # True is an int; a limit above MAX_TOKENS is none.
        if type(value) is int and 0 < value <= MAX_TOKENS:
            return value
    return 0


def _values(body: bytes) -> int:
    """Return a bound on the JSON values; a key counts twice more: an object's entry takes more memory."""
    return body.count(b",") + body.count(b"[") + body.count(b"{") + 2 * body.count(b":")


def _is_text(name: str) -> bool:
    """Tell whether UTF-8 can encode the name: JSON may hold half a surrogate pair, a label cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _material(api: Api | None, document: dict[str, object]) -> Iterable[bytes]:
    if api is None:  # the body's fields say which API it resembles
        api = next((each for each in APIS if each.field in document), None)
    return api.prompt(document) if api is not None and api.field in document else ()
