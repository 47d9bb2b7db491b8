"""Profiles that a study tries beside the pool's own: weights of scorers that users can set. Pure."""

from collections.abc import Mapping
from typing import Final

from inference_api.default_picker_config import DEFAULT_PICKER_CONFIG
from pool_simulation.policies import picker_config

OWN: Final = "own"

_QUEUE, _KV, _PREFIX = "queue-scorer", "kv-cache-utilization-scorer", "prefix-cache-scorer"

#: Name and EndpointPickerConfig of each.
TRIED: Final[Mapping[str, str]] = {
    "default": DEFAULT_PICKER_CONFIG,
    "load-first": picker_config({_QUEUE: 3, _KV: 2, _PREFIX: 1}),
    "prefix-first": picker_config({_QUEUE: 1, _KV: 1, _PREFIX: 4}),
    # The default, with the picker's own count of requests or tokens in place of the scraped queue.
    "in-flight": picker_config({"active-request-scorer": 2, _KV: 2, _PREFIX: 3}),
    "tokens": picker_config({"token-load-scorer": 2, _KV: 2, _PREFIX: 3}),
}
