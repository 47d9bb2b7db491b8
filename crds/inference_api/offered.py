"""A picker's report on its configuration texts (which it saw last, which it uses), its health, prediction.

The picker serves it as JSON on its metrics port; the operator reads it and derives conditions. Pure.
"""

from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from inference_api.picker_health import PickerHealth
from inference_api.prediction_report import PredictionReport

#: Path on the picker's metrics port.
OFFERED_PATH: Final = "/debug/config"
#: Limit on the text of an error, characters.
ERROR_LIMIT: Final = 2000

_MARK_DIGITS: Final = 16


def text_mark(text: str) -> str:
    """Return a digest that identifies a text: the first 16 hex digits of the SHA-256 of its UTF-8 form."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_MARK_DIGITS]


class Uses(StrEnum):
    """Which text a picker works with."""

    OFFERED = "offered"
    """The text offered last."""
    LAST_GOOD = "last-good"
    """The text offered last is refused; the last valid one stays in use."""
    DEFAULT = "default"
    """The text offered last is refused, with no valid one before: the default (no priorities) is in use."""


class OfferedText(BaseModel):
    """The picker's verdict on one text."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    mark: Annotated[str, Field(max_length=64)] = ""
    """`text_mark` of the text offered last, whether it is used or refused; "" when none was."""
    error: Annotated[str, Field(max_length=ERROR_LIMIT)] = ""
    """What is wrong with it and where; "" when it is in use."""
    uses: Uses = Uses.OFFERED

    @classmethod
    def judged(cls, text: str, error: str, *, replaced: bool) -> "OfferedText":
        """Return the verdict on a text; `replaced` says that a valid one was in use before it."""
        uses = Uses.OFFERED if not error else Uses.LAST_GOOD if replaced else Uses.DEFAULT
        return cls(mark=text_mark(text), error=error[:ERROR_LIMIT], uses=uses)


class Offered(BaseModel):
    """The verdicts on both texts, and the health of the picker's connections."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    config: OfferedText = OfferedText()
    """The EndpointPickerConfig."""
    priorities: OfferedText = OfferedText()
    """The priority table."""
    health: PickerHealth | None = None
    """None in the answer of a picker that is older than this field."""
    prediction: PredictionReport | None = None
    """None without prediction, and in the answer of a picker that is older than this field."""
