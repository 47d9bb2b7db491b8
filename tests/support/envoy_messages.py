"""Builds the ext-proc messages that Envoy sends, and reads the replies, with the generated classes."""

import json
from collections.abc import Iterable
from typing import Any, cast

from envoy.service.ext_proc.v3 import external_processor_pb2 as _untyped_pb

pb = cast("Any", _untyped_pb)
SUBSET = ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset")
SERVED = ("envoy.lb", "x-gateway-destination-endpoint-served")


def body_of(model: str = "m", prompt: object = "hello", **more: object) -> bytes:
    return json.dumps({"model": model, "prompt": prompt, **more}).encode()


def request_headers(
    headers: dict[str, str] | None = None,
    *,
    end: bool = False,
    subset: object = None,
    path: str = "/v1/completions",
    method: str = "POST",
    body_modes: tuple[int, int] | None = None,
) -> bytes:
    message = pb.ProcessingRequest()
    if body_modes is not None:
        message.protocol_config.request_body_mode, message.protocol_config.response_body_mode = body_modes
    known = {":method": method, ":path": path, "x-request-id": "r-1"}
    if method == "POST":
        known["content-type"] = "application/json"
    for key, value in (known | (headers or {})).items():
        if value:
            message.request_headers.headers.headers.add(key=key, raw_value=value.encode())
    message.request_headers.end_of_stream = end
    if subset is not None:
        struct = message.metadata_context.filter_metadata[SUBSET[0]]
        struct.update({SUBSET[1]: subset})
    return cast("bytes", message.SerializeToString())


def request_body(body: bytes, *, end: bool) -> bytes:
    return _body("request_body", body, end=end)


def response_body(body: bytes, *, end: bool) -> bytes:
    return _body("response_body", body, end=end)


def _body(kind: str, body: bytes, *, end: bool) -> bytes:
    part = pb.HttpBody(body=body, end_of_stream=end)
    return cast("bytes", pb.ProcessingRequest(**{kind: part}).SerializeToString())


def trailers(kind: str) -> bytes:
    message = pb.ProcessingRequest()
    getattr(message, kind).trailers.headers.add(key="x-sum", raw_value=b"1")
    return cast("bytes", message.SerializeToString())


def response_headers(
    content_type: str = "application/json", *, status: str = "200", served: str = "", end: bool = False
) -> bytes:
    message = pb.ProcessingRequest()
    for key, value in ((":status", status), ("content-type", content_type)):
        message.response_headers.headers.headers.add(key=key, raw_value=value.encode())
    message.response_headers.end_of_stream = end
    if served:
        message.metadata_context.filter_metadata[SERVED[0]].update({SERVED[1]: served})
    return cast("bytes", message.SerializeToString())


def kind(payload: bytes) -> str:
    """Return which request a message of Envoy holds."""
    return cast("str", pb.ProcessingRequest.FromString(payload).WhichOneof("request"))


def read(payloads: Iterable[bytes]) -> list[Any]:
    return [pb.ProcessingResponse.FromString(payload) for payload in payloads]


def kinds(payloads: Iterable[bytes]) -> list[str]:
    return [message.WhichOneof("response") for message in read(payloads)]


def pieces(payloads: Iterable[bytes], kind: str) -> list[tuple[bytes, bool]]:
    """Return (body, end_of_stream) of every body reply of a kind."""
    found = []
    for message in read(payloads):
        if message.WhichOneof("response") == kind:
            part = getattr(message, kind).response.body_mutation
            assert part.WhichOneof("mutation") == "streamed_response"
            found.append((part.streamed_response.body, part.streamed_response.end_of_stream))
    return found


def set_headers(message: Any) -> dict[str, str]:
    options = message.request_headers.response.header_mutation.set_headers
    return {option.header.key: option.header.raw_value.decode() for option in options}
