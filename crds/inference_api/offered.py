"""What a picker says of the texts that it is given (which it saw last, whether it uses it), and its health.

The picker serves it as JSON on its metrics port; the operator reads it and makes a condition of it. Pure.
"""

from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from inference_api.picker_health import PickerHealth

#: Path on the picker's metrics port.
OFFERED_PATH: Final = "/debug/config"
#: The most characters of an error that are passed on.
ERROR_LIMIT: Final = 2000

_MARK_DIGITS: Final = 16


def text_mark(text: str) -> str:
    """Return what stands for a text: the first 16 hex digits of the SHA-256 of its UTF-8 form."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_MARK_DIGITS]


class Uses(StrEnum):
    """Which text a picker works with."""

    OFFERED = "offered"
    """The one that it was offered last."""
    LAST_GOOD = "last-good"
    """That one is refused; the last one without a fault stays in use."""
    DEFAULT = "default"
    """That one is refused, and there was none before: the default (of priorities: none) is in use."""


class OfferedText(BaseModel):
    """How one text stands."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    mark: Annotated[str, Field(max_length=64)] = ""
    """`text_mark` of the text offered last, whether it is used or refused; "" when none was."""
    error: Annotated[str, Field(max_length=ERROR_LIMIT)] = ""
    """What is wrong with it and where; "" when it is in use."""
    uses: Uses = Uses.OFFERED

    @classmethod
    def judged(cls, text: str, error: str, *, replaced: bool) -> "OfferedText":
        """Return how a text stands; `replaced` tells that a good one came before it."""
        uses = Uses.OFFERED if not error else Uses.LAST_GOOD if replaced else Uses.DEFAULT
        return cls(mark=text_mark(text), error=error[:ERROR_LIMIT], uses=uses)


class Offered(BaseModel):
    """How both texts stand, and what the picker sees of its proxies and endpoints."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    config: OfferedText = OfferedText()
    """The EndpointPickerConfig."""
    priorities: OfferedText = OfferedText()
    """The priority table."""
    health: PickerHealth | None = None
    """None in the answer of a picker that is older than this field."""
