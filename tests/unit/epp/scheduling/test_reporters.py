"""Plugins that add to the response, and the expressions that one of them reads."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from endpoint_picker.decision import Decision
from endpoint_picker.record import Record
from endpoint_picker.scheduling.plugin import NoParams
from endpoint_picker.scheduling.reporters.expression import (
    MAX_LENGTH,
    EvaluationError,
    expression_of,
)
from endpoint_picker.scheduling.reporters.request_attribute import ReporterParams, RequestAttributeReporter
from endpoint_picker.scheduling.reporters.served_verifier import DestinationEndpointServedVerifier
from ext_proc.body.usage import Usage

#: 7 prompt tokens, of which 4 were cached, and 3 of the completion.
USAGE = Usage(7, 3, 4)
DECISION = Decision(destination="", endpoint="", reservations=())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("usage.prompt_tokens", 7),
        ("usage.total_tokens + 1", 11),
        ("usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens", 3),
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("10 - 2 - 3", 5),
        ("7 / 2", 3),
        ("-7 / 2", -3),
        ("-7 % 2", -1),
        ("7 % -2", 1),
        ("- - 5", 5),
        ("usage.completion_tokens > 2 ? 10 : 20", 10),
        ("false ? 1 : true ? 2 : 3", 2),
        ("usage.completion_tokens > 2 && usage.prompt_tokens > 7 ? 10 : 20", 20),
        # Only the chosen branch is evaluated.
        ("true ? 1 : 1 / 0", 1),
    ],
)
def test_whole_numbers(text: str, expected: int) -> None:
    assert expression_of(text, int).value(USAGE) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", True),
        ("!true", False),
        ("!!true", True),
        ("usage.prompt_tokens == 7", True),
        ("usage.prompt_tokens != 7", False),
        ("3 <= 3 && 3 >= 3 && 2 < 3 && 3 > 2", True),
        # && binds tighter than ||.
        ("true || false && false", True),
        ("(true || false) && false", False),
        ("true == false", False),
        ("has(usage.completion_tokens)", True),
        ("has(usage.prompt_tokens_details.cached_tokens) || 1 / 0 == 1", True),
    ],
)
def test_conditions(text: str, expected: bool) -> None:
    assert expression_of(text, bool).value(USAGE) is expected


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("", int, "cannot be read at its end"),
        ("1 +", int, "cannot be read at its end"),
        ("1 2", int, 'cannot be read at "2"'),
        ("(1", int, "cannot be read at its end"),
        ("1 $ 2", int, r'cannot be read at "\$ 2"'),
        ("1", bool, "is no condition"),
        ("true", int, "is no whole number"),
        ("1 + true", int, "joins a condition where a whole number is needed"),
        ("1 < 2 < 3", bool, "joins"),
        ("!1", bool, "joins"),
        ("-!true", int, "cannot be read"),
        ("1 ? 2 : 3", int, "joins"),
        ("true ? 2 : false", int, "joins"),
        ("usage.tokens", int, "it has prompt_tokens, completion_tokens"),
        ("usage", int, "has no field"),
        ("response.code", int, 'cannot be read at "response.code"'),
        ("has(1)", bool, "cannot be read"),
        ("9223372036854775808", int, "too large"),
        ("(" * 40 + "1" + ")" * 40, int, "nested too deeply"),
        ("1" * (MAX_LENGTH + 1), int, "at most"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, kind: type, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expression_of(text, kind)


@pytest.mark.parametrize(
    "text", ["1 / 0", "1 % (usage.prompt_tokens - 7)", "9223372036854775807 + 1", "-9223372036854775807 - 2"]
)
def test_an_expression_without_value(text: str) -> None:
    with pytest.raises(EvaluationError):
        expression_of(text, int).value(USAGE)


_WORDS = ["usage.prompt_tokens", "has(", "true", "7", "(", ")", "?", ":", "+", "-", "*", "/", "&&", "<", "!"]


@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(_WORDS), max_size=200).map(" ".join)))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = expression_of(text, int)
    except ValueError:
        return
    with suppress(EvaluationError):
        assert isinstance(found.value(USAGE), int)


def test_the_longest_chain_is_read_and_evaluated() -> None:
    text = "+".join(["1"] * (MAX_LENGTH // 2))
    assert expression_of(text, int).value(USAGE) == MAX_LENGTH // 2


def reporter(**attribute: Any) -> RequestAttributeReporter:
    given_ = {"key": {"name": "cost"}, "expression": "usage.total_tokens"} | attribute
    return RequestAttributeReporter(ReporterParams.model_validate({"attributes": [given_]}))


@pytest.mark.parametrize(
    ("attribute", "usage", "expected"),
    [
        pytest.param({}, USAGE, [("envoy.lb", "cost", 10.0)], id="default namespace"),
        pytest.param(
            {"key": {"namespace": "billing", "name": "t"}}, USAGE, [("billing", "t", 10.0)], id="namespace"
        ),
        pytest.param({}, None, [], id="no usage"),
        pytest.param({}, Usage(0, 0, 0), [], id="zero"),
        pytest.param({"expression": "1 / 0"}, USAGE, [], id="no value"),
        pytest.param(
            {"condition": "usage.prompt_tokens > 5"}, USAGE, [("envoy.lb", "cost", 10.0)], id="condition met"
        ),
        pytest.param({"condition": "usage.prompt_tokens > 7"}, USAGE, [], id="condition not met"),
    ],
)
def test_the_reporter(
    attribute: dict[str, Any], usage: Usage | None, expected: list[tuple[str, str, float]]
) -> None:
    record = Record(0.0)
    record.usage = usage
    assert list(reporter(**attribute).response_complete(DECISION, record)) == expected


@pytest.mark.parametrize("count", [0, 2])
def test_the_reporter_has_exactly_one_attribute(count: int) -> None:
    attribute = {"key": {"name": "cost"}, "expression": "1"}
    with pytest.raises(ValidationError):
        ReporterParams.model_validate({"attributes": [attribute] * count})


def test_the_verifier_says_who_served() -> None:
    verifier = DestinationEndpointServedVerifier(NoParams())
    record = Record(0.0)
    ((name, value),) = verifier.response_headers(DECISION, record)
    assert name == "x-conformance-test-served-endpoint"
    assert value.startswith("fail: ")
    record.served_by = "10.0.0.1:3000"
    assert list(verifier.response_headers(DECISION, record)) == [(name, "10.0.0.1:3000")]
