"""The command line of `headroom-batch` itself."""

import pytest

from batch_subscriber.main import run
from inference_api.release import release_version


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a command: run, dead, plan, submit, serve"),
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
    ],
)
def test_a_bad_command_line_is_one_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.split()[-1] == release_version()
