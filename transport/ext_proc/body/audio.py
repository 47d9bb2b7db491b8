"""OpenAI's audio: transcriptions and translations (multipart uploads), and speech. Pure."""

from collections.abc import Iterator
from typing import Final

from ext_proc.body import material
from ext_proc.body.api import Api, Fields, Form
from ext_proc.body.openai import PARSER, prompt_of

_PROMPT: Final = ("file", "prompt", "language")


def transcription(fields: Fields) -> Iterator[bytes]:
    """Lay out the audio's digest, which the encoder sees first, then language and prompt."""
    for key in ("file", "language", "prompt"):
        value = fields.get(key)
        if value is not None:
            yield material.MEDIA if key == "file" else material.NEXT
            yield material.text(value.raw)


APIS: Final = (
    Api(
        name="transcriptions",
        paths=("audio/transcriptions", "audio/translations"),
        parser=PARSER,
        layout=transcription,
        prompt=_PROMPT,
        needs_model=True,
        form=Form.MULTIPART,
    ),
    Api(
        name="speech",
        paths=("audio/speech",),
        parser=PARSER,
        layout=prompt_of("input"),
        prompt=("input",),
        needs_model=True,
    ),
)
