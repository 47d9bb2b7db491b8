"""What the pods of a picker say of the configuration that they were given. Pure values.

`ask_picker.py` asks; `configuration.py` poses the question and judges the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from inference_api.offered import Offered


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Which pods to ask about which text. A question that differs in anything is asked at once."""

    namespace: str
    app: str
    """Name of the picker: the label by which its pods are found."""
    port: int
    """Their metrics port."""
    mark: str
    """`text_mark` of the configuration that they should have seen."""
    deployment: str
    """resourceVersion of their Deployment: another one when a pod became ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What is known of the answer."""

    answer: Offered | None = None
    """What was said last, be it of an older text; of several pods, what matters most."""
    problem: str = ""
    """Why nothing is known of the text that was asked about; "" when something is, or nobody was asked."""
    asking: bool = False
    """A new question is under way."""


def conclude(mark: str, said: Sequence[Offered], unheard: Sequence[str]) -> Heard:
    """Return what the pods say together of the text with that mark.

    One pod that refuses it is enough; it is accepted when all have said so. `unheard` tells why others gave
    no answer.
    """
    for each in said:
        if each.config.mark == mark and each.config.error:
            return Heard(answer=each)
    late = next((each for each in said if each.config.mark != mark), None)
    if unheard:
        return Heard(problem=unheard[0])
    if late is not None:
        return Heard(answer=late, problem="the picker has not seen the newest configuration yet")
    return Heard(answer=said[0]) if said else Heard(problem="no picker pod is ready")
