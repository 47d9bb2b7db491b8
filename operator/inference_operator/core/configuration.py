"""The condition ConfigAccepted: the question to the picker's pods, and how to judge their answer. Pure."""

from typing import Final

from inference_api import names
from inference_api.endpoint_picker import CONFIG_ACCEPTED
from inference_api.offered import Offered, OfferedText, Uses, text_mark
from inference_operator.core import reasons
from inference_operator.core.desired.ports import picker_ports
from inference_operator.core.kinds import CONFIG_MAP, DEPLOYMENT
from inference_operator.core.naming import config_name, priorities_name
from inference_operator.core.observation import Observation
from inference_operator.core.picker_answers import Question
from inference_operator.core.reasons import Reason
from inference_operator.core.rollout import Judgement

#: The most characters of a picker's error in a message.
_ERROR_LIMIT: Final = 500
_INSTEAD: Final = {
    Uses.OFFERED: "it all the same",
    Uses.LAST_GOOD: "the last good one",
    Uses.DEFAULT: "the default",
}


def question(seen: Observation) -> Question | None:
    """Return the question for the picker's pods.

    None while the pool was not understood, no picker pod is ready, or the ConfigMap does not exist.
    """
    if seen.pool is None:  # its target ports are unknown
        return None
    deployment = seen.child(DEPLOYMENT, seen.picker_name)
    mark = _mark(seen, config_name(seen.picker_name), names.CONFIG_KEY)
    if deployment is None or not deployment.get("status", {}).get("readyReplicas") or not mark:
        return None
    return Question(
        namespace=seen.namespace,
        app=seen.picker_name,
        port=picker_ports(seen).metrics,
        mark=mark,
        deployment=deployment["metadata"].get("resourceVersion", ""),
        endpoints=seen.endpoints,
        ports=tuple(port.number for port in seen.pool.spec.target_ports),
    )


def judge_configuration(seen: Observation) -> Judgement:
    """Return what the picker answered about the text that the ConfigMap holds now.

    While the picker is asked, the condition keeps its status and its observedGeneration. Without that, every
    change would turn it to Unknown for a moment.
    """
    known = seen.picker_answer
    mark = _mark(seen, config_name(seen.picker_name), names.CONFIG_KEY)
    if mark and known.answer is not None and known.answer.config.mark == mark:
        return _said(seen, known.answer)
    held = None if seen.held_status is None else seen.held_status.condition(CONFIG_ACCEPTED)
    if known.asking and held is not None and held.reason != reasons.NOT_JUDGED.word:
        return Judgement(
            held.status, reasons.Finding(held.reason, held.message), generation=held.observed_generation
        )
    if known.problem:
        port = picker_ports(seen).metrics
        return Judgement("Unknown", reasons.NOT_ANSWERED.say(problem=known.problem, port=port))
    return Judgement("Unknown", reasons.NOT_ASKED.say())


def _said(seen: Observation, answer: Offered) -> Judgement:
    if answer.config.error:
        given = seen.spec.config is not None
        return _refused(reasons.CONFIG_REFUSED if given else reasons.DEFAULT_REFUSED, answer.config)
    mark = _mark(seen, priorities_name(seen.picker_name), names.PRIORITIES_KEY)
    if answer.priorities.error and answer.priorities.mark == mark:
        return _refused(reasons.PRIORITIES_REFUSED, answer.priorities)
    return Judgement("True", reasons.CONFIG_ACCEPTED.say())


def _refused(reason: Reason, text: OfferedText) -> Judgement:
    words = " ".join(text.error.split()).rstrip(".")
    error = words if len(words) <= _ERROR_LIMIT else words[: _ERROR_LIMIT - 1] + "…"
    return Judgement("False", reason.say(error=error, instead=_INSTEAD[text.uses]))


def _mark(seen: Observation, name: str, key: str) -> str:
    """Return the mark of the text that the ConfigMap holds; "" when the cache has no such text."""
    live = seen.child(CONFIG_MAP, name)
    text = None if live is None else (live.get("data") or {}).get(key)
    return text_mark(text) if isinstance(text, str) else ""
