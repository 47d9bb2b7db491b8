"""inflight-load-producer: the expected answer counts among the tokens in flight until the request ends."""

import json

import pytest

from endpoint_picker.config.build import build
from endpoint_picker.config.registry import Registry
from endpoint_picker.config_errors import ConfigError
from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.decision import Decision
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.routing import build_router
from ext_proc.body.apis import api_of
from ext_proc.body.reading import ParsedBody, read

REGISTRY = Registry.installed()


@pytest.mark.parametrize(
    ("parameters", "max_tokens", "expected"),
    [
        ("", 0, 100 + 150),
        (", outputRatio: 2", 0, 100 + 200),
        (", maxEstimatedOutputTokens: 20", 0, 100 + 20),
        ("", 30, 100 + 30),
        (", maxEstimatedOutputTokens: 20", 30, 100 + 20),
        (", outputRatio: 0", 30, 100),
    ],
)
def test_a_decision_counts_prompt_and_answer(parameters: str, max_tokens: int, expected: int) -> None:
    config = (
        "plugins: [{type: queue-scorer}, {type: inflight-load-producer, "
        f"parameters: {{addEstimatedOutputTokens: true{parameters}}}}}]"
    )
    router = build_router(config_text=config)
    router.replace_endpoints([Endpoint("p", "default", "10.0.0.1", 8000)])
    request = InferenceRequest(request_id="r", model="m", prompt=b"p" * 400)
    request.max_tokens = max_tokens
    decision = router.decide(request, None, lambda _answer: None)
    assert isinstance(decision, Decision)
    assert router.table.inflight_tokens.sum() == expected
    router.first_byte(decision, Record(0.0))
    assert router.table.inflight_tokens.sum() == expected - 100
    router.ended(decision, Record(0.0))
    assert not router.table.inflight_tokens.any()
    assert router.apply_config("")
    decision = router.decide(request, None, lambda _answer: None)
    assert router.table.inflight_tokens.sum() == 100, "another configuration does not count answers"


def test_settings_without_effect_are_refused_or_warned_of() -> None:
    with pytest.raises(ConfigError, match="outputRatio needs addEstimatedOutputTokens: true"):
        build("plugins: [{type: inflight-load-producer, parameters: {outputRatio: 2}}]", REGISTRY)
    (warning,) = build("plugins: [{type: queue-scorer}, {type: inflight-load-producer}]", REGISTRY).warnings
    assert '"inflight-load-producer" does nothing' in warning


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 8, "max_tokens": 7}, 8),
        ({"max_output_tokens": 9}, 9),
        ({"max_tokens": None, "max_output_tokens": 9}, 9),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": -1}, 0),
        ({"max_tokens": True}, 0),
        ({"max_tokens": "7"}, 0),
        ({"max_tokens": 7.5}, 0),
        ({"max_tokens": 10**30}, 0),
        ({}, 0),
    ],
)
def test_the_clients_limit_is_read_from_the_body(body: dict[str, object], expected: int) -> None:
    text = json.dumps({"model": "m", "prompt": "p", **body}).encode()
    parsed = read(api_of("/v1/completions"), text)
    assert isinstance(parsed, ParsedBody)
    assert parsed.max_tokens == expected
