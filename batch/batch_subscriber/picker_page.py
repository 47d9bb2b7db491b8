"""What the subscriber reads of a picker's metrics page. Pure.

Names are the picker's; it keeps the older names of the inference extension beside them.
"""

import re
from collections.abc import Iterator
from typing import Final

from batch_subscriber.flow import Reading

#: Largest page that is read, bytes.
MAX_PAGE_BYTES: Final = 16 * 2**20

_SATURATION: Final = (
    b"llm_d_epp_flow_control_pool_saturation",
    b"inference_extension_flow_control_pool_saturation",
)
_QUEUED: Final = (b"llm_d_epp_flow_control_queue_size", b"inference_extension_flow_control_queue_size")
_READY: Final = (b"llm_d_epp_ready_endpoints", b"inference_pool_ready_pods")
_LABEL: Final = re.compile(rb'(\w+)="((?:[^"\\]|\\.)*)"')


def read_page(page: bytes, pool: str = "") -> Reading:
    """Return the reading of one pool; without a name, of all pools of the page.

    Of several stages or pools the fullest one is the saturation. Without flow control a picker shows none.
    """
    saturation = max((value for _, value in _series(page, _SATURATION, pool)), default=None)
    queued = replicas = None
    if saturation is not None:
        queued = int(sum(value for labels, value in _series(page, _QUEUED, pool) if _is_negative(labels)))
    ready = [value for _, value in _series(page, _READY, pool)]
    if ready:
        replicas = int(sum(ready))
    return Reading(saturation, queued, replicas)


def _is_negative(labels: dict[bytes, bytes]) -> bool:
    return labels.get(b"priority", b"").startswith(b"-")


def _series(page: bytes, names: tuple[bytes, ...], pool: str) -> Iterator[tuple[dict[bytes, bytes], float]]:
    """Yield the series of the first of `names` that the page has."""
    wanted = pool.encode()
    for name in names:
        found = re.findall(
            rb"^" + name + rb"(?:\{(.*)\})? ([0-9.eE+\-]+|\+?Inf)(?: \d+)?$", page, re.MULTILINE
        )
        for text, value in found:
            labels = dict(_LABEL.findall(text))
            if not wanted or labels.get(b"inference_pool", labels.get(b"name")) == wanted:
                yield labels, float(value)
        if found:
            return
