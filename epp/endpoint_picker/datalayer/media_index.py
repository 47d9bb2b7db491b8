"""Estimates which server has encoded which image, from this picker's own decisions. Pure.

An engine keeps the embeddings of images, videos and audio that it has encoded, by their content. Each server
has a bounded list of content hashes, the least recently used dropped first.
"""

from collections import OrderedDict
from typing import Any, Final, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from endpoint_picker.datalayer.prompt_reading import MEDIA_TYPES
from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.request import InferenceRequest

#: Assumed size of an item's embeddings, in bytes.
ITEM_BYTES: Final = 2 << 20
#: Longest body that is searched for them, in bytes: the event loop waits for it.
MAX_BODY: Final = 4 << 20
#: Most items of a request.
MAX_ITEMS: Final = 1024
#: Most items of a server, whatever its cache is said to hold.
MAX_CAPACITY: Final = 65_536


class Item(NamedTuple):
    """An image, a video or a piece of audio in a prompt."""

    digest: int
    kind: str
    """image, video or audio."""


class _Message(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw(b"")


class _Chat(msgspec.Struct):
    messages: list[_Message] = []


_read_chat: Final = msgspec.json.Decoder(_Chat).decode
_read_parts: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_read_any: Final = msgspec.json.Decoder().decode
_KINDS: Final = {
    "image_url": "image",
    "input_image": "image",
    "video_url": "video",
    "audio_url": "audio",
    "input_audio": "audio",
}


def items_of(request: InferenceRequest) -> list[Item]:
    """Return the media of a chat's messages, in order; at most `MAX_ITEMS`, none in an odd or a long body."""
    if request.body_bytes > MAX_BODY:
        return []
    body = request.body
    if not any(f'"{each}"'.encode() in body for each in MEDIA_TYPES):
        return []
    found: list[Item] = []
    try:
        for message in _read_chat(body).messages:
            if bytes(message.content).lstrip()[:1] != b"[":
                continue
            for part in _read_parts(message.content):
                kind = next((each for each in MEDIA_TYPES if each in part), None)
                if kind is not None and len(found) < MAX_ITEMS:
                    found.append(Item(xxh3_64_intdigest(_content(part[kind])), _KINDS[kind]))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return []
    return found


def _content(raw: msgspec.Raw) -> bytes:
    """Return what an item's part stands for: its URL or its data, without detail settings and spacing."""
    value: Any = _read_any(raw)
    if isinstance(value, dict):
        value = value.get("url", value.get("data", value))
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(raw)


class MediaIndex:
    """Content hashes by row, bounded for each."""

    __slots__ = ("_recent", "capacity", "hits", "queries")

    def __init__(self, table: EndpointTable) -> None:
        self._recent: dict[int, OrderedDict[int, None]] = {}
        self.capacity = 4096 * (1 << 20) // ITEM_BYTES
        """Items of a server."""
        self.queries: dict[str, int] = {}
        """Items asked about, by kind."""
        self.hits: dict[str, int] = {}
        """Items that the chosen server held, by kind."""
        table.on_free(self._forget)

    def holds(self, row: int, digest: int) -> bool:
        """Tell whether the row's server is believed to hold the item."""
        recent = self._recent.get(row)
        return recent is not None and digest in recent

    def record(self, row: int, items: list[Item]) -> None:
        """Note that the row's server is going to hold these items."""
        recent = self._recent.setdefault(row, OrderedDict())
        for each in items:
            recent[each.digest] = None
            recent.move_to_end(each.digest)
        while len(recent) > self.capacity:
            recent.popitem(last=False)

    def _forget(self, row: int) -> None:
        self._recent.pop(row, None)
