"""The inference APIs by path: its last whole segments count, whatever stands before them. Pure."""

import re
from collections.abc import Mapping
from typing import Final

from ext_proc.body import anthropic, audio, engines, grpc_engine, openai, pooling, responses, vertex
from ext_proc.body.api import Api

APIS: Final[tuple[Api, ...]] = (
    *openai.APIS,
    *responses.APIS,
    *audio.APIS,
    *anthropic.APIS,
    *engines.APIS,
    *grpc_engine.APIS,
    *vertex.APIS,
    *pooling.APIS,
)
_RESPONSE: Final = re.compile(r"/responses/([^/]{1,256})")
_BY_PATH: Final[Mapping[str, Api]] = {path: api for api in APIS for path in api.paths}
_MOST_SEGMENTS: Final = max(path.count("/") for path in _BY_PATH) + 1
#: Paths that end like those of an API and belong to another one: messages of OpenAI's threads.
_NOT_UNDER: Final = "/threads/"
#: Paths whose API is remembered; a stranger chooses paths.
_REMEMBERED: Final = 512
_known: Final[dict[str, Api | None]] = {}


def api_of(path: str) -> Api | None:
    """Return the API of a path without query; None for a path of no known API."""
    try:
        return _known[path]
    except KeyError:
        pass
    segments = path.rstrip("/").split("/")[-_MOST_SEGMENTS:]
    found = None
    for first in range(len(segments)):
        found = _BY_PATH.get("/".join(segments[first:]))
        if found is not None:
            break
    if found is not None and _NOT_UNDER in path:
        found = None
    if len(_known) >= _REMEMBERED:
        _known.clear()
    if len(path) <= 256:
        _known[path] = found
    return found


def state_in(path: str) -> str:
    """Return the id of the response that a path names, as in GET /v1/responses/resp_1; "" for none."""
    found = _RESPONSE.search(path)
    return found[1] if found else ""
