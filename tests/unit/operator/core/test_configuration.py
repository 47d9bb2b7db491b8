"""What the operator asks a picker about its configuration, and what it makes of the answers."""

from dataclasses import replace

import pytest

from inference_api.offered import ERROR_LIMIT, Offered, OfferedText, Uses, text_mark
from inference_operator.core.configuration import question
from inference_operator.core.kinds import CONFIG_MAP, DEPLOYMENT
from inference_operator.core.observation import Observation
from inference_operator.core.ownership import judge
from inference_operator.core.picker_answers import PickerAnswer, conclude
from inference_operator.core.status import Report, report
from observations import answered, observation, picker_body, pool_body, settled

READY = {"replicas": 1, "readyReplicas": 1, "updatedReplicas": 1, "observedGeneration": 1}
FAULT = "plugins[0].type: there is no plugin 'no-such-scorer'"
GIVEN = {"plugins": [{"type": "no-such-scorer"}]}


def ready(seen: Observation, version: str = "7") -> Observation:
    body = seen.children[DEPLOYMENT, "llm-epp"]
    body = {**body, "metadata": {**body["metadata"], "resourceVersion": version}, "status": READY}
    return replace(seen, children={**seen.children, (DEPLOYMENT, "llm-epp"): body})


def told(seen: Observation) -> Report:
    return report(seen, judge(seen))


def condition(made: Report, kind: str = "ConfigAccepted") -> tuple[str, str, str]:
    found = made.status.condition(kind)
    assert found is not None
    return found.status, found.reason, found.message


def after(seen: Observation, made: Report, generation: int) -> Observation:
    """Return the observation after that report was written and the user has edited the EndpointPicker."""
    body = {**(seen.picker_object or {}), "status": made.status.to_json()}
    body["metadata"] = {**body["metadata"], "generation": generation}
    return seen.with_picker(body)


USERS = ready(settled(observation(picker=picker_body(config=GIVEN))))
DEFAULTS = ready(settled())


@pytest.mark.parametrize(
    ("seen", "uses", "words"),
    [
        (USERS, Uses.LAST_GOOD, "refuses spec.config and serves with the last good one"),
        (USERS, Uses.DEFAULT, "refuses spec.config and serves with the default"),
        (DEFAULTS, Uses.DEFAULT, "correct spec.image"),
    ],
)
def test_a_refused_configuration_is_told_with_what_decides_instead(
    seen: Observation, uses: Uses, words: str
) -> None:
    made = told(answered(seen, FAULT, uses))
    status, reason, message = condition(made)
    assert (status, reason) == ("False", "ConfigRefused")
    assert words in message
    assert FAULT in message
    assert ("ConfigAccepted", False) in {(each.type, each.good) for each in made.transitions}


def test_the_summary_says_it_when_all_else_is_well() -> None:
    made = told(answered(USERS, FAULT))
    assert made.summary.reason == "NoEndpoints"
    made = told(answered(replace(USERS, endpoints=replace(USERS.endpoints, ready=1, total=1)), FAULT))
    assert made.summary.reason == "ConfigRefused"
    assert condition(made, "Ready")[:2] == ("False", "ConfigRefused")


def test_a_long_error_is_cut() -> None:
    _, _, message = condition(told(answered(USERS, "x\n" * (ERROR_LIMIT // 2))))
    assert len(message) < 700
    assert "\n" not in message
    assert "Correct spec.config" in message


def test_refused_priorities_are_told_while_they_are_those_that_are_written() -> None:
    table = text_mark(USERS.children[CONFIG_MAP, "llm-epp-priorities"]["data"]["table.json"])
    answer = answered(USERS).picker_answer.answer
    assert answer is not None
    for mark, status in ((table, "False"), ("0" * 16, "True")):
        refused = OfferedText(mark=mark, error="version: 9", uses=Uses.LAST_GOOD)
        said = PickerAnswer(answer=answer.model_copy(update={"priorities": refused}))
        assert condition(told(replace(USERS, picker_answer=said)))[0] == status


def test_an_answer_about_another_text_says_nothing() -> None:
    older = Offered(config=OfferedText(mark="0" * 16, error=FAULT))
    said = condition(told(replace(USERS, picker_answer=PickerAnswer(answer=older))))
    assert said[:2] == ("Unknown", "NotAsked")
    late = condition(told(replace(USERS, picker_answer=PickerAnswer(answer=older, problem="not seen yet"))))
    assert late[:2] == ("Unknown", "NotAnswered")
    assert "not seen yet" in late[2]
    assert "9090" in late[2]


@pytest.mark.parametrize("error", [FAULT, ""])
def test_while_a_change_is_asked_about_the_condition_stays_what_it_was(error: str) -> None:
    first = told(answered(USERS, error))
    edited = after(USERS, first, generation=9)
    during = told(replace(edited, picker_answer=PickerAnswer(asking=True)))
    assert condition(during) == condition(first)
    assert (condition(during, "Ready")[1] == "ConfigRefused") == (
        condition(first, "Ready")[1] == "ConfigRefused"
    )
    found = during.status.condition("ConfigAccepted")
    assert found is not None
    assert found.observed_generation == 3
    silent = told(replace(edited, picker_answer=PickerAnswer(problem="pod p did not answer")))
    assert condition(silent)[:2] == ("Unknown", "NotAnswered")


def test_what_to_ask_changes_with_the_text_and_with_the_deployment() -> None:
    asked = question(USERS)
    assert asked is not None
    assert (asked.namespace, asked.app, asked.port) == ("ns", "llm-epp", 9090)
    assert asked == question(USERS)
    assert asked != question(DEFAULTS)
    assert asked != question(ready(USERS, "8"))


def test_other_target_ports_are_another_question() -> None:
    body = pool_body(targetPorts=[{"number": 8001}])
    assert question(DEFAULTS) != question(DEFAULTS.with_pool(body))


def test_nobody_is_asked_before_a_pod_is_ready_or_without_a_text() -> None:
    assert question(settled()) is None
    without = {key: body for key, body in USERS.children.items() if key[0] is not CONFIG_MAP}
    assert question(replace(USERS, children=without)) is None


GOOD = Offered(config=OfferedText(mark="new"))
BAD = Offered(config=OfferedText(mark="new", error="no"))
LATE = Offered(config=OfferedText(mark="old", error="no"))


@pytest.mark.parametrize(
    ("said", "silent", "answer", "sure"),
    [
        pytest.param([GOOD, GOOD], [], GOOD, True, id="all accept"),
        pytest.param([GOOD, BAD], ["silent"], BAD, True, id="one refuses"),
        pytest.param([GOOD], ["silent"], None, False, id="one is silent"),
        pytest.param([GOOD, LATE], [], LATE, False, id="one has not seen it"),
        pytest.param([], [], None, False, id="nobody there"),
    ],
)
def test_several_pods_say_one_thing(
    said: list[Offered], silent: list[str], answer: Offered | None, sure: bool
) -> None:
    made = conclude("new", said, silent)
    assert made.answer == answer
    assert (made.problem == "") == sure
