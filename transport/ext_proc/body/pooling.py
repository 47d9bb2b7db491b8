"""vLLM's score, pooling, classify and tokenize, and rerank in the styles of Cohere and Jina. Pure."""

from collections.abc import Iterator
from typing import Final

from ext_proc.body import material
from ext_proc.body.api import Api, Fields
from ext_proc.body.openai import CHAT_KEYS, chat

_PARSER: Final = "vllmhttp-parser"
#: Keys of a pair's first text: rerank, score.
_FIRST: Final = ("query", "text_1", "queries")
_SECOND: Final = ("documents", "text_2", "items")


def pairs(fields: Fields) -> Iterator[bytes]:
    """Lay out the query, then the documents: a cross-encoder sees each pair with the query first."""
    if "cache_salt" in fields:
        yield from material.isolation(fields.get("cache_salt"), None)
    for keys in (_FIRST, _SECOND):
        for key in keys:
            value = fields.get(key)
            if value is not None:
                yield material.START
                yield from material.sequence(value)


def text_or_chat(fields: Fields) -> Iterator[bytes]:
    """Lay out `input` or `prompt`, or a chat."""
    for key in ("input", "prompt"):
        value = fields.get(key)
        if value is not None:
            if "cache_salt" in fields:
                yield from material.isolation(fields.get("cache_salt"), None)
            yield from material.sequence(value)
            return
    yield from chat(fields)


_TEXT_KEYS: Final = ("input", "prompt", *CHAT_KEYS)

APIS: Final = (
    Api(
        name="rerank",
        paths=("rerank",),
        parser=_PARSER,
        layout=pairs,
        prompt=(*_FIRST, *_SECOND, "cache_salt"),
    ),
    Api(
        name="score",
        paths=("score",),
        parser=_PARSER,
        layout=pairs,
        prompt=(*_FIRST, *_SECOND, "cache_salt"),
    ),
    Api(
        name="pooling",
        paths=("pooling", "classify"),
        parser=_PARSER,
        layout=text_or_chat,
        prompt=_TEXT_KEYS,
    ),
    Api(name="tokenize", paths=("tokenize",), parser=_PARSER, layout=text_or_chat, prompt=_TEXT_KEYS),
)

#: Stands for JSON bodies on paths of no known API: their fields say which API they resemble.
OTHER: Final = Api(
    name="other",
    paths=(),
    parser="",
    layout=text_or_chat,
    prompt=_TEXT_KEYS,
    max_tokens=("max_completion_tokens", "max_tokens", "max_output_tokens"),
)
