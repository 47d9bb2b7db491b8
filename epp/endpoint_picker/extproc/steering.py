"""The endpoint picker protocol: subset hint, destination and the served endpoint's report. Pure."""

from collections.abc import Sequence
from typing import Final

from ext_proc import wire
from ext_proc.head import Head, MetadataKey
from ext_proc.processor import Forward
from inference_api.names import (
    DESTINATION_KEY,
    DESTINATION_SERVED_KEY,
    DESTINATION_SUBSET_KEY,
    LB_NAMESPACE,
    SUBSET_NAMESPACE,
)

#: Key beside DESTINATION_KEY of the scores, a struct of "ip:port" to number.
SCORES_KEY: Final = f"{DESTINATION_KEY}-scores"

_SUBSET: Final = MetadataKey(SUBSET_NAMESPACE, DESTINATION_SUBSET_KEY)
_SERVED: Final = MetadataKey(LB_NAMESPACE, DESTINATION_SERVED_KEY)

#: Destinations below this length, in bytes, get an entry in `_AROUND`, which bounds it. Ten IPv6 ones fit.
_MEMO_BELOW: Final = 512
#: By length: the header entry before and after the destination, and the metadata before it.
_AROUND: Final[dict[int, tuple[bytes, bytes, bytes]]] = {}


def subset_hint(head: Head) -> tuple[str, ...] | None:
    """Return the endpoints that the proxy restricts the pick to; None when it does not.

    Proxies send a list of strings, a comma-separated string or a list of comma-separated strings. A key
    without a usable value is an empty restriction: no endpoint is allowed.
    """
    value = head.metadata(_SUBSET)
    if value is None:
        return None
    texts = [item.string_value for item in value.list_value.values] or [value.string_value]
    return tuple(entry for text in texts for part in text.split(",") if (entry := part.strip()))


def served_endpoint(head: Head) -> str:
    """Return the "ip:port" that answered, as the proxy reports it; "" when it does not."""
    return head.text(_SERVED)


def steer(
    destination: str,
    remove: list[str],
    add: Sequence[tuple[str, str]] = (),
    scores: Sequence[tuple[str, float]] = (),
) -> Forward:
    """Return the answer that names a destination, as header and as metadata, and removes and sets headers.

    `scores` are ("ip:port", score) of endpoints, for the metadata.

    The bytes around a destination depend on its length only and are cached by it. A cache by destination
    would miss: a pool of 32 endpoints has 29,760 destinations of three.
    """
    value = destination.encode()
    before, after, metadata = _AROUND.get(len(value)) or _around(len(value))
    mutation = before + value + after
    for name, text in add:
        mutation += wire.set_header(name, text.encode())
    for name in remove:
        mutation += wire.remove_header(name)
    if scores:
        return Forward(
            mutation,
            wire.dynamic_metadata_with_numbers(LB_NAMESPACE, DESTINATION_KEY, value, SCORES_KEY, scores),
        )
    return Forward(mutation, metadata + value)


def _around(length: int) -> tuple[bytes, bytes, bytes]:
    entry = wire.set_header(DESTINATION_KEY, bytes(length))
    metadata = wire.dynamic_metadata(LB_NAMESPACE, DESTINATION_KEY, bytes(length))
    around = entry[: -length - 2], entry[-2:], metadata[: len(metadata) - length]
    if length < _MEMO_BELOW:
        _AROUND[length] = around
    return around
