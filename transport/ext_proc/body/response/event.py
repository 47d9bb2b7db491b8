"""What one JSON value of a response says: usage, whether it holds a token, whether it is an error. Pure.

The value is a whole document, or the data of a server-sent event, of any of the dialects: OpenAI's chat,
completions and responses, Anthropic's messages, vLLM's and SGLang's generate. `TREE` names the members that
count, for a `Slimmer`; the decoder takes the value itself or its slim form.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from ext_proc.body.response.slim import MAX_SCALAR, Each, Keep, Tree
from ext_proc.body.usage import UsageMerge

_DETAILS: Final[Tree] = {"cached_tokens": Keep.SHORT}
_USAGE: Final[Tree] = {
    "prompt_tokens": Keep.SHORT,
    "completion_tokens": Keep.SHORT,
    "input_tokens": Keep.SHORT,
    "output_tokens": Keep.SHORT,
    "cached_tokens": Keep.SHORT,
    "cache_read_input_tokens": Keep.SHORT,
    "cache_creation_input_tokens": Keep.SHORT,
    "prompt_tokens_details": _DETAILS,
    "input_tokens_details": _DETAILS,
}
#: The members of a response's JSON that are looked at.
TREE: Final[Mapping[str, Tree]] = {
    "type": Keep.SHORT,
    "choices": {"delta": Each(), "text": Keep.SHORT, "token_ids": Keep.SHORT},
    "delta": Each(),
    "text": Keep.SHORT,
    "token_ids": Keep.SHORT,
    "output_ids": Keep.SHORT,
    "usage": _USAGE,
    "meta_info": _USAGE,
    "error": Keep.SHORT,
    "response": {"id": Keep.SHORT, "usage": _USAGE},
    "id": Keep.SHORT,
    "object": Keep.SHORT,
    "message": {"usage": _USAGE},
}


class _Choice(msgspec.Struct, gc=False):
    delta: Any = None
    text: Any = None
    token_ids: Any = None


class _Inner(msgspec.Struct, gc=False):
    id: Any = None
    usage: Any = None


_InnerOrNot = _Inner | str | int | float | bool | list[msgspec.Raw] | None


class _Event(msgspec.Struct, gc=False):
    type: Any = None
    id: Any = None
    object: Any = None
    choices: list[_Choice] | None = None
    delta: Any = None
    text: Any = None
    token_ids: Any = None
    output_ids: Any = None
    usage: Any = None
    meta_info: Any = None
    error: Any = None
    response: _InnerOrNot = None
    message: _InnerOrNot = None


_decode: Final = msgspec.json.Decoder(_Event).decode
#: Members of a delta that say what it is, not what was generated.
_LABELS: Final = frozenset({"role", "type"})
#: Beginnings of the types of events that hold no token, except those that end in ".delta".
_WITHOUT_TOKEN: Final = ("response.", "transcript.", "message_", "content_block_", "ping")
_ANTHROPIC_DELTA: Final = "content_block_delta"


class Said(NamedTuple):
    """What a value says beside usage."""

    token: bool
    """The value holds something generated."""
    key: str = ""
    """The member whose string holds it, "" when it is no string or in no known member."""
    text: str = ""
    """That string."""
    error: bool = False
    response_id: str = ""


_NOTHING: Final = Said(token=False)
_SOME: Final = Said(token=True)
_ERROR: Final = Said(token=False, error=True)


def read_event(value: bytes, merge: UsageMerge) -> Said | None:
    """Read one value: add its usage to `merge`. None when it is no JSON object of a known form."""
    try:
        event = _decode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if event.usage is not None:
        merge.add(event.usage)
    choices = event.choices
    if choices is not None:
        for choice in choices:
            for key in ("delta", "text", "token_ids"):
                if found := getattr(choice, key):
                    said = _generated(key, found)
                    if said.token:
                        return said
        return _ERROR if event.error else _NOTHING
    return _without_choices(event, merge)


def _without_choices(event: _Event, merge: UsageMerge) -> Said:
    if event.meta_info is not None:
        merge.add(event.meta_info)
    if isinstance(event.message, _Inner):
        merge.add(event.message.usage)
    inner = event.response
    if isinstance(inner, _Inner):
        merge.add(inner.usage)
        said = _of_kind(event)
        return said._replace(response_id=_short(inner.id))
    if event.object == "response":
        return Said(token=True, error=bool(event.error), response_id=_short(event.id))
    return _of_kind(event)


def _of_kind(event: _Event) -> Said:
    kind = _short(event.type)
    if event.error or kind in {"error", "response.failed"}:
        return _ERROR
    if kind.startswith(_WITHOUT_TOKEN) and kind != _ANTHROPIC_DELTA and not kind.endswith(".delta"):
        return _NOTHING
    known = event.usage is not None
    for key in ("delta", "text", "token_ids", "output_ids"):
        found = getattr(event, key)
        if found is not None:
            known = True
            said = _generated(key, found)
            if said.token:
                return said
    return _NOTHING if known else _SOME  # what has another form is taken for an answer


def _short(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= MAX_SCALAR else ""


def _generated(key: str, value: object) -> Said:
    """Return what a member says that may hold something generated."""
    if isinstance(value, str):
        return Said(True, key, value) if value else _NOTHING
    if isinstance(value, dict):
        for name, member in value.items():
            if member and name not in _LABELS:
                return Said(True, name, member) if isinstance(member, str) else _SOME
        return _NOTHING
    return _SOME if value else _NOTHING
