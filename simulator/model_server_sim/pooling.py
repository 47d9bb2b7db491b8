"""What a server answers without generating: embeddings, ranks, transcripts, images. Pure.

The numbers mean nothing; equal inputs give equal ones. No engine works on these calls.
"""

import base64
import hashlib
import struct
from typing import Any

from model_server_sim import prompt
from model_server_sim.protocol import ApiError, dumps

#: Length of a simulated embedding.
DIMENSIONS = 64
#: Inputs of one call.
MAX_INPUTS = 2048
#: A PNG of one pixel.
_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
Fields = dict[str, Any]


def _inputs(value: object, param: str) -> list[bytes]:
    """Return texts or lists of token ids as bytes. Raises ApiError 400."""
    if isinstance(value, str) or (isinstance(value, list) and value and type(value[0]) is int):
        value = [value]
    if not isinstance(value, list) or not 0 < len(value) <= MAX_INPUTS:
        raise ApiError(400, f"{param} must be a text, token ids, or a list of either", param=param)
    found = []
    for item in value:
        try:
            found.append(item.encode() if isinstance(item, str) else prompt.encode_ids(item))
        except (TypeError, ValueError):
            raise ApiError(
                400, f"{param} must be a text, token ids, or a list of either", param=param
            ) from None
    return found


def _tokens(inputs: list[bytes]) -> int:
    return sum(map(prompt.count_tokens, inputs))


def embeddings(fields: Fields, model: str, answer_id: str, created: int) -> bytes:
    """Return the answer of /v1/embeddings. Raises ApiError 400."""
    inputs = _inputs(fields.get("input"), "input")
    encoded = fields.get("encoding_format") == "base64"
    data = []
    for index, item in enumerate(inputs):
        digest = hashlib.shake_128(item).digest(DIMENSIONS)
        vector = [(byte - 127.5) / 127.5 for byte in digest]
        raw = struct.pack(f"<{DIMENSIONS}f", *vector)
        value: object = base64.b64encode(raw).decode() if encoded else vector
        data.append({"index": index, "object": "embedding", "embedding": value})
    count = _tokens(inputs)
    usage = {"prompt_tokens": count, "total_tokens": count, "completion_tokens": 0}
    head = {"id": answer_id, "object": "list", "created": created, "model": model}
    return dumps({**head, "data": data, "usage": usage})


def rerank(fields: Fields, model: str, answer_id: str) -> bytes:
    """Return the answer of /rerank, best first. Raises ApiError 400."""
    (query,) = _inputs(fields.get("query"), "query")
    documents = fields.get("documents")
    texts = _inputs(documents, "documents")
    scores = [
        int.from_bytes(hashlib.sha256(query + b"\0" + text).digest()[:4], "big") / 2**32 for text in texts
    ]
    best = sorted(range(len(texts)), key=lambda index: -scores[index])
    top = fields.get("top_n")
    results = [
        {"index": at, "document": {"text": texts[at].decode(errors="replace")}, "relevance_score": scores[at]}
        for at in best[: top if isinstance(top, int) and top > 0 else None]
    ]
    usage = {"total_tokens": _tokens([query, *texts])}
    return dumps({"id": answer_id, "model": model, "usage": usage, "results": results})


def transcription(audio: bytes, *, words: int = 8) -> bytes:
    """Return the answer of /v1/audio/transcriptions."""
    text = prompt.text(prompt.digest_of(audio, 0), words).strip()
    return dumps({"text": text, "usage": {"type": "duration", "seconds": -(-len(audio) // 32_000)}})


def images(fields: Fields, created: int) -> bytes:
    """Return the answer of /v1/images/generations. Raises ApiError 400."""
    if not isinstance(fields.get("prompt"), str):
        raise ApiError(400, "prompt must be a string", param="prompt")
    count = fields.get("n") or 1
    if type(count) is not int or not 1 <= count <= 10:
        raise ApiError(400, "n must be an integer from 1 to 10", param="n")
    image = {"b64_json": base64.b64encode(_PNG).decode()}
    return dumps({"created": created, "data": [image] * count})
