"""vLLM's gRPC engine, for pools that speak h2c. Pure.

Field numbers are those of vllm_engine.proto, package vllm.grpc.engine. Its messages name no model.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from ext_proc.body import material
from ext_proc.body.api import Api, Fields, Form
from ext_proc.body.frames import fields_of, packed_ids
from ext_proc.body.response.engine import EngineReader

_TOKENIZED, _TEXT, _SAMPLING, _STREAM = 2, 3, 4, 5
_ORIGINAL_TEXT, _INPUT_IDS = 1, 2
_MAX_TOKENS: Final = 8


def extract(message: bytes) -> dict[str, bytes]:
    """Return what a GenerateRequest or an EmbedRequest holds; `input_ids` are packed varints."""
    found: dict[str, bytes] = {}
    for number, value in fields_of(message):
        if isinstance(value, bytes):
            if number == _TOKENIZED:
                found |= _tokenized(value)
            elif number == _TEXT:
                found["text"] = json.dumps(
                    value[: material.MAX_MATERIAL_BYTES].decode("utf-8", "replace")
                ).encode()
            elif number == _SAMPLING:
                limits = [each for key, each in fields_of(value) if key == _MAX_TOKENS]
                if limits and isinstance(limits[-1], int):
                    found["max_tokens"] = b"%d" % limits[-1]
        elif number == _STREAM:
            found["stream"] = b"true" if value else b"false"
    return found


def _tokenized(message: bytes) -> dict[str, bytes]:
    for number, value in fields_of(message):
        if number == _INPUT_IDS and isinstance(value, bytes):
            return {"input_ids": value}
    return {}


def generate(fields: Fields) -> Iterator[bytes]:
    """Lay out the token ids, four bytes each, or the text."""
    ids, text = fields.get("input_ids"), fields.get("text")
    if ids is not None:
        yield from packed_ids(ids.raw)
    elif text is not None:
        yield material.text(text.raw)


def _api(method: str, reader: Callable[[], EngineReader]) -> Api:
    return Api(
        name=f"vllm grpc {method}",
        paths=(f"vllm.grpc.engine.VllmEngine/{method}",),
        parser="vllmgrpc-parser",
        layout=generate,
        prompt=("input_ids", "text"),
        dialect="grpc",
        max_tokens=("max_tokens",),
        form=Form.GRPC,
        extract=extract,
        reader=reader,
    )


APIS: Final = (_api("Generate", EngineReader), _api("Embed", partial(EngineReader, embeds=True)))
