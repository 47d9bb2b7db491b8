"""The command line of the picker."""

from pathlib import Path

import pytest

from endpoint_picker.settings import parse

POD = {"POD_IP": "10.1.2.3", "NAMESPACE": "inference"}


def test_defaults_come_from_the_pod() -> None:
    found = parse(["--pool-name", "llama"], POD)
    assert (found.pool_name, found.pool_namespace, found.bind_addresses) == (
        "llama",
        "inference",
        ("10.1.2.3", "127.0.0.1"),
    )
    assert (found.grpc_port, found.health_port, found.metrics_port) == (9002, 9003, 9090)
    assert found.secure_serving
    assert found.drain_timeout_s == 30
    assert found.refresh_metrics_interval_s == 0.05
    assert found.config_file == Path("/etc/headroom/config/config.yaml")


def test_where_pods_share_the_machines_loopback_only_their_own_address_is_bound() -> None:
    assert parse(["--pool-name=p"], {"POD_IP": "127.64.0.3"}).bind_addresses == ("127.64.0.3",)
    assert parse(["--pool-name=p"], {}).bind_addresses == ("127.0.0.1",)


@pytest.mark.parametrize(
    ("flags", "secure"),
    [
        ([], True),
        (["--secure-serving"], True),
        (["--secure-serving=true"], True),
        (["--secure-serving=false"], False),
        (["--no-secure-serving"], False),
    ],
)
def test_secure_serving_in_all_spellings(flags: list[str], secure: bool) -> None:
    assert parse(["--pool-name", "p", *flags], POD).secure_serving is secure


def test_flags_win_over_the_pod() -> None:
    found = parse(["--pool-name=p", "--pool-namespace=n", "--bind-address=::1", "--drain-timeout=1m30s"], POD)
    assert (found.pool_namespace, found.bind_addresses, found.drain_timeout_s) == ("n", ("::1",), 90)


def test_a_file_of_endpoints_needs_no_pool() -> None:
    assert parse(["--endpoints-file", "e.yaml"], {}).pool_name == "epp"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "--pool-name"),
        ([], "(--pool-name NAME | --endpoints-file FILE)"),
        (["--pool-name", "p", "--grpc-port", "70000"], "no port"),
        (["--pool-name", "p", "--drain-timeout", "soon"], "duration"),
        (["--pool-name", "p", "--refresh-metrics-interval", "1ms"], "50ms"),
        (["--pool-name", "p", "--secure-serving=maybe"], "neither true nor false"),
        (["--pool-name", "p", "--bind-address", "host"], "no IP address"),
        (["--pool-name", "p", "--log-level", "loud"], "log-level"),
        (["--pool-name", "p", "--max-request-bytes", "0"], "bytes"),
        (["--pool-name", "p", "--tracing-endpoint", "collector:4318"], "write http://HOST:4318"),
        (["--pool-name", "p", "--tracing-sampling-percent", "101"], "use 0 to 100"),
        (["--pool-name", "p", "--unknown"], "--unknown"),
    ],
)
def test_a_bad_command_line_is_one_sentence_and_status_2(
    flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(flags, {})
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
