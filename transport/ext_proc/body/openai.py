"""OpenAI's chat, completions, embeddings, images and conversations, with vLLM's additions to them. Pure."""

from collections.abc import Iterator
from itertools import chain
from typing import Final

from ext_proc.body import material
from ext_proc.body.api import Api, Fields, Form, Layout, nothing

PARSER: Final = "openai-parser"
#: Fields that change what a chat template writes before the messages.
_TEMPLATE: Final = ("chat_template", "chat_template_kwargs", "documents", "functions", "reasoning_effort")
_ISOLATION: Final = ("cache_salt", "lora_request")
CHAT_KEYS: Final = ("messages", "tools", *_TEMPLATE, *_ISOLATION)


def chat(fields: Fields) -> Iterator[bytes]:
    """Lay out tools first, as chat templates put them, then each message: role, content, calls."""
    if "cache_salt" in fields or "lora_request" in fields:
        yield from material.isolation(fields.get("cache_salt"), fields.get("lora_request"))
    for key in _TEMPLATE:
        value = fields.get(key)
        if value is not None and value.raw != b"null":
            yield from (material.START, key.encode(), material.NEXT, material.whole(value.raw))
    yield from material.tools(fields.get("tools"))
    messages = fields.get("messages")
    if messages is not None:
        yield from material.messages(messages)


def prompt_of(key: str) -> Layout:
    """Return the layout of an API whose prompt is the value of one key."""

    def layout(fields: Fields) -> Iterator[bytes]:
        value = fields.get(key)
        pieces: Iterator[bytes] = iter(()) if value is None else material.sequence(value)
        if "cache_salt" in fields or "lora_request" in fields:
            return chain(material.isolation(fields.get("cache_salt"), fields.get("lora_request")), pieces)
        return pieces

    return layout


_CHAT_LIMITS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")

APIS: Final = (
    Api(
        name="chat",
        paths=("chat/completions", "chat/completions/render"),
        parser=PARSER,
        layout=chat,
        prompt=CHAT_KEYS,
        needs_model=True,
        max_tokens=_CHAT_LIMITS,
    ),
    Api(
        name="completions",
        paths=("completions", "completions/render"),
        parser=PARSER,
        layout=prompt_of("prompt"),
        prompt=("prompt", *_ISOLATION),
        needs_model=True,
        max_tokens=_CHAT_LIMITS,
    ),
    Api(
        name="embeddings",
        paths=("embeddings",),
        parser=PARSER,
        layout=prompt_of("input"),
        prompt=("input", *_ISOLATION),
        needs_model=True,
    ),
    Api(
        name="images",
        paths=("images/generations",),
        parser=PARSER,
        layout=prompt_of("prompt"),
        prompt=("prompt",),
    ),
    Api(
        name="image edits",
        paths=("images/edits", "images/variations"),
        parser=PARSER,
        layout=nothing,
        form=Form.MULTIPART,
    ),
    Api(name="conversations", paths=("conversations",), parser=PARSER, layout=nothing),
)
