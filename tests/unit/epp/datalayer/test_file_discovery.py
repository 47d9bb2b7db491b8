"""Endpoints from a file."""

import json
from pathlib import Path

import pytest

from endpoint_picker.config_errors import ConfigError
from endpoint_picker.datalayer.file_discovery import FileWatch, endpoints_in
from endpoint_picker.datalayer.table import Endpoint


def test_yaml_and_json_are_read() -> None:
    yaml = "endpoints:\n- {name: a, namespace: x, address: 127.0.0.2, port: '8000', labels: {k: v}}\n"
    entry = {"name": "a", "namespace": "x", "address": "127.0.0.2", "port": 8000, "labels": {"k": "v"}}
    expected = [Endpoint("a", "x", "127.0.0.2", 8000, labels={"k": "v"})]
    assert endpoints_in(yaml) == endpoints_in(json.dumps({"endpoints": [entry]})) == expected
    assert endpoints_in("") == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        pytest.param(
            "endpoints: [{name: a, address: example.com, port: 1}]", "endpoints[0].address", id="host name"
        ),
        pytest.param(
            "endpoints: [{name: a, address: 127.0.0.1, port: 70000}]", "endpoints[0].port", id="port"
        ),
        pytest.param("endpoints: [{address: 127.0.0.1, port: 1}]", "endpoints[0].name", id="no name"),
        pytest.param(
            "endpoints: [{name: a, address: 127.0.0.1, port: 1, x: 1}]", "endpoints[0].x", id="unknown key"
        ),
        pytest.param("endpoint: []", "endpoint", id="misspelt"),
        pytest.param("endpoints: [", "", id="not YAML"),
        pytest.param(
            "endpoints: [{name: a, address: 127.0.0.1, port: 1}, {name: a, address: 127.0.0.2, port: 1}]",
            "endpoints[1].name",
            id="one name twice",
        ),
    ],
)
def test_faults_are_told_by_path(text: str, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        endpoints_in(text)
    assert caught.value.path == path


def test_a_replaced_file_is_read_again_and_a_faulty_one_changes_nothing(tmp_path: Path) -> None:
    got: list[list[str]] = []
    path = tmp_path / "endpoints.yaml"
    watch = FileWatch(path, lambda endpoints: got.append([each.hostport for each in endpoints]))
    watch.look()
    assert not watch.synced
    assert "endpoints.yaml" in watch.error
    path.write_text("endpoints: [{name: a, address: 127.0.0.1, port: 1}]")
    watch.look()
    watch.look()
    assert got == [["127.0.0.1:1"]]
    path.write_text("endpoints: [{name: a}]")
    watch.look()
    assert "endpoints[0].address" in watch.error
    assert watch.synced
    fresh = tmp_path / "fresh"
    fresh.write_text("endpoints: []")
    fresh.replace(path)
    watch.look()
    assert got == [["127.0.0.1:1"], []]
    assert watch.error == ""


def test_a_file_that_is_not_there_is_named_once_and_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "nosuch.yaml"
    FileWatch(path, lambda _endpoints: None).look()
    (said,) = caplog.messages
    assert said.count(str(path)) == 1
    assert "waiting for the file" in said


def test_an_address_with_a_zone_is_refused() -> None:
    # What follows the % is any text, and would travel into headers.
    with pytest.raises(ConfigError, match=r"endpoints\[0\]\.address"):
        endpoints_in('endpoints: [{name: a, address: "fe80::1%x\\r\\ny", port: 1}]')
