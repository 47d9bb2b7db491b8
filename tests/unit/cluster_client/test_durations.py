"""One grammar of durations for flags and configurations."""

import pytest

from cluster_client.durations import parse_duration, seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("200ms", 0.2),
        ("1m30s", 90),
        ("1.5h", 5400),
        ("1h1.5s", 3601.5),
        (".5s", 0.5),
        ("1.s", 1),
        ("10us", 1e-5),
        ("10µs", 1e-5),
        ("10μs", 1e-5),
        ("3ns", 3e-9),
        ("0", 0),
        ("0s", 0),
        pytest.param("5", 5, id="a bare number is seconds"),
        ("2.5", 2.5),
    ],
)
def test_durations(text: str, expected: float) -> None:
    assert parse_duration(text) == pytest.approx(expected)
    assert seconds(text) == parse_duration(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "s", "ms", "-1s", "+1s", "5x", "1d", "5s1", "1.2.3s", "٣s", "1_0s", "nan", "inf", "1e3"),
        *("1 s", "5s ", " 5s", "9" * 100, "9" * 100 + "s"),
    ],
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration") as refused:
        parse_duration(text)
    assert len(str(refused.value)) < 80, "the message repeats nothing of what a user wrote"


@pytest.mark.parametrize("value", [5, 0.5, None, ["1s"]])
def test_what_is_no_text_is_left_to_the_validator(value: object) -> None:
    assert seconds(value) is value
