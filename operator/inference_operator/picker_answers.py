"""Answers of a picker's pods about the configuration that they watch. Pure values.

`configuration.py` makes the question and judges the answer; `ask_picker.py` carries both over HTTP.
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
class PickerAnswer:
    """What the operator knows of the answer."""

    answer: Offered | None = None
    """The latest answer, perhaps about an older text.

    With several pods: that of a pod that refuses, else of a pod that lags.
    """
    problem: str = ""
    """Why nothing is known of the text in question; "" when it is known, or no pod was asked."""
    asking: bool = False
    """A new question is under way."""


def conclude(mark: str, said: Sequence[Offered], silent: Sequence[str]) -> PickerAnswer:
    """Return what the pods say together of the text with that mark.

    One pod that refuses it is enough; it is accepted when all have accepted it. `silent` says why the
    other pods gave no answer.
    """
    for each in said:
        if each.config.mark == mark and each.config.error:
            return PickerAnswer(answer=each)
    late = next((each for each in said if each.config.mark != mark), None)
    if silent:
        return PickerAnswer(problem=silent[0])
    if late is not None:
        return PickerAnswer(answer=late, problem="the picker has not seen the newest configuration yet")
    return PickerAnswer(answer=said[0]) if said else PickerAnswer(problem="no picker pod is ready")
