"""The command line of headroom-trainer."""

from typing import Any

import pytest

from latency_predictor.training.settings import parse


def test_defaults() -> None:
    chosen = parse([])
    assert chosen.listen == ("127.0.0.1:8010",)
    assert chosen.http == "127.0.0.1:8000"
    assert chosen.quantiles == (0.5, 0.9)
    assert chosen.bound == 0.9


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--quantiles", "0.9,0.5"], "ascending"),
        (["--quantiles", "0.9"], "one must be near 0.5"),
        (["--quantiles", "a"], "numbers separated by commas"),
        (["--bound", "0.8"], "none of the quantiles"),
        (["--least-samples", "0"], "--least-samples must be above 0"),
    ],
    ids=lambda value: value[1] if isinstance(value, list) else "",
)
def test_bad_ones_say_what_to_do(arguments: Any, said: Any, capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(arguments)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err
