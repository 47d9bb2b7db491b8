"""Settings: flags, the file, and what is refused."""

from pathlib import Path

import pytest

from batch_subscriber.errors import ConfigurationError
from batch_subscriber.settings import parse

NEEDED = ["--queue", "sqlite:/q", "--results", "file:/r", "--gateway", "http://g/base"]


def test_a_flag_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "batch.yaml"
    file.write_text("max_in_flight: 7\nmax_attempts: 9\nobjective: batch\n")
    settings = parse([*NEEDED, "--config", str(file), "--max-attempts", "2"])
    assert (settings.max_in_flight, settings.max_attempts, settings.objective) == (7, 2, "batch")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_inflight: 7", "max_inflight: there is no such setting"),
        ("max_in_flight: many", "max_in_flight: .*integer"),
        ("max_in_flight: 0", "max_in_flight: .*greater than or equal to 1"),
        ("max_in_flight: 600", "max_held .512. must be at least max_in_flight"),
        ("gateway: gateway:80", "gateway: "),
        ("log_level: loud", "log_level: "),
        ("- a", "must be a mapping"),
        ("a: [", "is no YAML"),
    ],
)
def test_a_setting_that_cannot_work_is_named(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "batch.yaml"
    file.write_text(text)
    flags = [one for one in NEEDED if not text.startswith("gateway") or one not in NEEDED[4:]]
    with pytest.raises(ConfigurationError, match=says):
        parse([*flags, "--config", str(file)])


def test_what_is_needed_is_said() -> None:
    with pytest.raises(ConfigurationError, match="queue: is needed; give --queue or queue in the file"):
        parse([])


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"/nowhere\.yaml: No such file"):
        parse([*NEEDED, "--config", "/nowhere.yaml"])
