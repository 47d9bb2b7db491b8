"""One API server with all CRDs of the tree, for all tests of this folder."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from api_server import ApiServer
from control_plane import running_control_plane
from inference_api.crd import RESOURCES


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    directory: Path = tmp_path_factory.mktemp("control-plane")
    with running_control_plane(directory) as plane:
        server = ApiServer(plane)
        for resource in RESOURCES:
            definition = resource.definition()
            path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            answer = server.create(path, definition)
            assert answer.code == 201, answer.message
            await_established(server, f"{path}/{definition['metadata']['name']}")
        yield server


def await_established(server: ApiServer, path: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        conditions = server.get(path).body.get("status", {}).get("conditions") or []
        held = {condition["type"]: condition for condition in conditions}
        assert held.get("NonStructuralSchema", {}).get("status") != "True", held
        if held.get("Established", {}).get("status") == "True":
            return
        time.sleep(0.05)
    pytest.fail(f"not established in time: {path}")
