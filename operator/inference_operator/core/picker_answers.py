"""Answers of a picker's pods about the configuration that they watch and their connections. Pure values.

`configuration.py` makes the question and judges the answer; `ask_picker.py` carries both over HTTP.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from inference_api.offered import Offered
from inference_api.picker_health import PickerHealth, PortHealth
from inference_operator.core.endpoints import EndpointTally


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
    endpoints: EndpointTally = field(default_factory=EndpointTally)
    """The pool's endpoints: others may be reached or not."""
    ports: tuple[int, ...] = ()
    """The pool's target ports; empty: any."""


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
    health: PickerHealth | None = None
    """What the pods see of their proxies and endpoints; None when none has said."""

    @property
    def settled(self) -> bool:
        """Whether the same question would be answered in the same way a moment later."""
        return not self.problem and (self.health is None or self.health.settled)


def conclude(mark: str, said: Sequence[Offered], silent: Sequence[str]) -> PickerAnswer:
    """Return what the pods say together of the text with that mark.

    One pod that refuses it is enough; it is accepted when all have accepted it. `silent` says why the
    other pods gave no answer.
    """
    health = _together([each.health for each in said if each.health is not None])
    for each in said:
        if each.config.mark == mark and each.config.error:
            return PickerAnswer(answer=each, health=health)
    late = next((each for each in said if each.config.mark != mark), None)
    if silent:
        return PickerAnswer(problem=silent[0], health=health)
    if late is not None:
        problem = "the picker has not seen the newest configuration yet"
        return PickerAnswer(answer=late, problem=problem, health=health)
    return (
        PickerAnswer(answer=said[0], health=health)
        if said
        else PickerAnswer(problem="no picker pod is ready")
    )


def about_all(question: Question, said: Offered) -> Offered:
    """Return the answer, marked as not settled while it is not about all endpoints that the pool has.

    A pod that has not seen the newest pool yet answers for the ports of before, or for none.
    """
    health = said.health
    if health is None or not health.settled:
        return said
    heard = sum(port.total for port in health.ports)
    strange = bool(question.ports) and any(port.port not in question.ports for port in health.ports)
    if heard >= question.endpoints.ready and not strange:
        return said
    return said.model_copy(update={"health": health.model_copy(update={"settled": False})})


def _together(all_health: Sequence[PickerHealth]) -> PickerHealth | None:
    """Return what several pods see together: each kind that one sees, each port as the worst sees it."""
    if not all_health:
        return None
    worst: dict[int, PortHealth] = {}
    for port in (port for health in all_health for port in health.ports):
        held = worst.get(port.port)
        if held is None or _badness(port) > _badness(held):
            worst[port.port] = port
    return PickerHealth(
        failed_handshakes=tuple(sorted({kind for health in all_health for kind in health.failed_handshakes})),
        connected=any(health.connected for health in all_health),
        ports=tuple(port for _, port in sorted(worst.items())),
        missing_signals=tuple(sorted({name for health in all_health for name in health.missing_signals})),
        settled=all(health.settled for health in all_health),
    )


def _badness(port: PortHealth) -> tuple[int, int]:
    return port.unconnected, port.silent + port.without_metrics
