import pytest

from inference_operator.durations import parse_duration
from inference_operator.flags import parse_settings


def test_defaults() -> None:
    settings = parse_settings([], {"POD_IP": "10.0.0.7"})
    assert (settings.manage, settings.namespaces, settings.bind_address) == ("all", (), "10.0.0.7")
    assert settings.epp_image.startswith("headroom-epp:")
    assert settings.resync_interval == 60.0


def test_flags() -> None:
    settings = parse_settings(
        ["--manage=annotated", "--namespaces=b, a,,a", "--resync-interval=1m30s", "--health-port=0"], {}
    )
    assert settings.manage == "annotated"
    assert settings.namespaces == ("a", "b")
    assert settings.resync_interval == 90.0
    assert settings.bind_address == "127.0.0.1"


@pytest.mark.parametrize(
    "flag",
    [
        "--manage=some",
        "--health-port=70000",
        "--health-port=x",
        "--resync-interval=0s",
        "--workers=0",
        "--nonsense",
    ],
)
def test_nonsense_is_refused_with_a_sentence(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_settings([flag], {})
    assert ended.value.code == 2
    assert flag.split("=", maxsplit=1)[0] in capsys.readouterr().err


@pytest.mark.parametrize(("text", "seconds"), [("5", 5.0), ("500ms", 0.5), ("1m30s", 90.0), ("1.5h", 5400.0)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "5x", "-5s", "5s ", "1s1"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)
