"""The roles of model servers in a disaggregated pool, by the label of their pods. Pure."""

from collections.abc import Mapping
from typing import Final

from inference_api.names import ROLE_LABEL

ENCODE: Final = "encode"
PREFILL: Final = "prefill"
DECODE: Final = "decode"

#: Value of the role label -> the stages that such a server works for; none for other values.
_STAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "encode": (ENCODE,),
    "prefill": (PREFILL,),
    "decode": (DECODE,),
    "encode-prefill": (ENCODE, PREFILL),
    "encode-decode": (ENCODE, DECODE),
    "prefill-decode": (PREFILL, DECODE),
    "encode-prefill-decode": (ENCODE, PREFILL, DECODE),
    "both": (PREFILL, DECODE),  # deprecated name of prefill-decode
}
#: A server without the label computes and answers whole requests.
_UNLABELLED: Final = (DECODE,)


def stages_of(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the stages that a server with these pod labels works for."""
    role = labels.get(ROLE_LABEL)
    return _UNLABELLED if role is None else _STAGES.get(role, ())
