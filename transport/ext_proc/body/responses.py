"""OpenAI's Responses API. Pure."""

from collections.abc import Iterator
from typing import Final

from ext_proc.body import material
from ext_proc.body.api import Api, Fields
from ext_proc.body.openai import PARSER


def responses(fields: Fields) -> Iterator[bytes]:
    """Lay out tools, instructions as a system message, then `input`: one user message, or a list of items."""
    if "cache_salt" in fields:
        yield from material.isolation(fields.get("cache_salt"), None)
    yield from material.tools(fields.get("tools"))
    instructions = fields.get("instructions")
    if instructions is not None and instructions.raw.startswith(b'"'):
        yield from (material.START, b"system", material.NEXT, material.text(instructions.raw))
    given = fields.get("input")
    if given is None:
        return
    if given.raw.startswith(b'"'):
        yield from (material.START, b"user", material.NEXT, material.text(given.raw))
    else:
        yield from material.messages(given)


APIS: Final = (
    Api(
        name="responses",
        paths=("responses",),
        parser=PARSER,
        layout=responses,
        prompt=("input", "instructions", "tools", "cache_salt"),
        needs_model=True,
        max_tokens=("max_output_tokens",),
        state=("previous_response_id", "conversation"),
    ),
)
