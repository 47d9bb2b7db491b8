"""Anthropic's messages and count_tokens. Pure."""

from collections.abc import Iterator
from typing import Final

from ext_proc.body import material
from ext_proc.body.api import Api, Fields

PARSER: Final = "anthropic-parser"
_PROMPT: Final = ("messages", "system", "tools", "cache_salt", "thinking")


def messages(fields: Fields) -> Iterator[bytes]:
    """Lay out tools, then `system` (text, or blocks of it), then the messages."""
    if "cache_salt" in fields:
        yield from material.isolation(fields.get("cache_salt"), None)
    yield from material.tools(fields.get("tools"))
    system = fields.get("system")
    if system is not None:
        yield from (material.START, b"system", material.NEXT)
        yield from material.content(system)
    given = fields.get("messages")
    if given is not None:
        yield from material.messages(given)


APIS: Final = (
    Api(
        name="messages",
        paths=("messages",),
        parser=PARSER,
        layout=messages,
        prompt=_PROMPT,
        dialect="anthropic",
        needs_model=True,
        max_tokens=("max_tokens",),
    ),
    Api(
        name="count_tokens",
        paths=("messages/count_tokens",),
        parser=PARSER,
        layout=messages,
        prompt=_PROMPT,
        dialect="anthropic",
        needs_model=True,
    ),
)
