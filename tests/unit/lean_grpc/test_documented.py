"""The tables of limits and states in docs/transport.md agree with the code."""

import re
from dataclasses import fields
from pathlib import Path

from lean_grpc import CHANNEL_LIMITS, DEFAULT_LIMITS, Limits
from lean_grpc.http2.states import TRANSITIONS, Event, Refusal, State

PAGE = (Path(__file__).parents[3] / "docs" / "transport.md").read_text()
NAMES = {
    State.OPEN: "open",
    State.HALF_CLOSED_LOCAL: "half-closed (local)",
    State.HALF_CLOSED_REMOTE: "half-closed (remote)",
    State.CLOSED: "closed",
    Refusal.CONNECTION_PROTOCOL_ERROR: "C PROTOCOL_ERROR",
    Refusal.STREAM_STREAM_CLOSED: "S STREAM_CLOSED",
    Refusal.MISUSE: "M",
}
ROWS = {
    "receive HEADERS": Event.RECEIVE_HEADERS,
    "receive DATA": Event.RECEIVE_DATA,
    "receive END_STREAM": Event.RECEIVE_END,
    "receive RST_STREAM": Event.RECEIVE_RESET,
    "receive WINDOW_UPDATE": Event.RECEIVE_WINDOW,
    "send HEADERS": Event.SEND_HEADERS,
    "send DATA": Event.SEND_DATA,
    "send END_STREAM": Event.SEND_END,
    "send RST_STREAM": Event.SEND_RESET,
}


def test_every_limit_is_documented_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", PAGE, re.MULTILINE))
    assert rows == {field.name: str(getattr(DEFAULT_LIMITS, field.name)) for field in fields(Limits)}


def test_channels_differ_as_documented() -> None:
    assert Limits(keepalive_interval=330.0) == CHANNEL_LIMITS


def test_every_transition_of_an_open_stream_is_documented() -> None:
    assert set(ROWS.values()) == set(Event)
    for title, event in ROWS.items():
        (row,) = re.findall(rf"^\| {re.escape(title)} \| (.*) \|$", PAGE, re.MULTILINE)
        said = row.split(" | ")[:4]
        assert said == [NAMES[TRANSITIONS[event][state]] for state in list(State)[:4]], title
