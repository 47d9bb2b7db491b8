"""Vertex AI's prediction service: gRPC messages that wrap the JSON of a chat or of a responses call. Pure.

A request has the endpoint in field 1 and a google.api.HttpBody in field 2, whose data is field 2.
"""

from collections.abc import Iterator
from typing import Final

from ext_proc.body.api import Api, Fields, Form
from ext_proc.body.frames import fields_of
from ext_proc.body.openai import CHAT_KEYS, chat
from ext_proc.body.responses import responses

_HTTP_BODY, _DATA = 2, 2
_METHODS: Final = ("ChatCompletions", "StreamRawPredict", "RawPredict")
_SERVICES: Final = (
    "google.cloud.aiplatform.v1.PredictionService",
    "google.cloud.aiplatform.v1beta1.PredictionService",
    "PredictionService",
)


def extract(message: bytes) -> bytes:
    """Return the JSON that the message wraps."""
    for number, body in fields_of(message):
        if number == _HTTP_BODY and isinstance(body, bytes):
            for inner, data in fields_of(body):
                if inner == _DATA and isinstance(data, bytes):
                    return data
    return b""


def chat_or_responses(fields: Fields) -> Iterator[bytes]:
    """Lay out a chat if there are messages, else the input of a responses call."""
    return chat(fields) if "messages" in fields else responses(fields)


APIS: Final = (
    Api(
        name="vertex",
        paths=tuple(f"{service}/{method}" for service in _SERVICES for method in _METHODS),
        parser="vertexai-parser",
        layout=chat_or_responses,
        prompt=(*CHAT_KEYS, "input", "instructions"),
        dialect="grpc",
        max_tokens=("max_completion_tokens", "max_tokens", "max_output_tokens"),
        state=("previous_response_id", "conversation"),
        form=Form.GRPC,
        extract=extract,
    ),
)
