import pytest

from inference_operator.shell.flags import parse_settings


def test_defaults() -> None:
    settings = parse_settings([], {"POD_IP": "10.0.0.7"})
    assert (settings.manage, settings.namespaces, settings.bind_addresses) == (
        "all",
        (),
        ("10.0.0.7", "127.0.0.1"),
    )
    assert settings.proxy_localhost
    assert settings.epp_image.startswith("headroom-epp:")
    assert settings.resync_interval == 60.0


def test_flags() -> None:
    settings = parse_settings(
        ["--manage=annotated", "--namespaces=b, a,,a", "--resync-interval=1m30s", "--health-port=0"], {}
    )
    assert settings.manage == "annotated"
    assert settings.namespaces == ("a", "b")
    assert settings.resync_interval == 90.0
    assert settings.bind_addresses == ("127.0.0.1",)


def test_where_pods_share_the_machines_loopback_nothing_binds_127_0_0_1() -> None:
    settings = parse_settings([], {"POD_IP": "127.64.0.3"})
    assert settings.bind_addresses == ("127.64.0.3",)
    assert not settings.proxy_localhost
    assert parse_settings(["--proxy-localhost=true"], {"POD_IP": "127.64.0.3"}).proxy_localhost


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
