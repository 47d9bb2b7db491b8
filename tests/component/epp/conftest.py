"""A real API server that serves InferencePools, and a namespace of its own for each test."""

import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from api_server import ApiServer
from control_plane import running_control_plane
from inference_api.crd import RESOURCES
from pool_space import POOLS, Space

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_NUMBERS = count(1)


def _eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def _serves_pools(api: ApiServer) -> bool:
    try:
        return api.get(POOLS.format("default")).code == 200
    except ValueError:  # a path that is not served yet is refused in plain text
        return False


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ApiServer, Path]]:
    with running_control_plane(tmp_path_factory.mktemp("epp") / "plane") as plane:
        api = ApiServer(plane)
        for resource in RESOURCES:
            answer = api.create(CRDS, resource.definition())
            assert answer.code == 201, answer.message
        _eventually(lambda: _serves_pools(api), "InferencePools are served")
        yield api, plane.kubeconfig


@pytest.fixture
def space(api_server: tuple[ApiServer, Path]) -> Space:
    api, kubeconfig = api_server
    space = Space(api, kubeconfig, f"epp-{next(_NUMBERS)}")
    space.ask("POST", "/api/v1/namespaces", {"metadata": {"name": space.namespace}})
    account = f"/api/v1/namespaces/{space.namespace}/serviceaccounts/default"
    # Pods are admitted once the namespace has its ServiceAccount.
    _eventually(lambda: api.get(account).code == 200, "the namespace has its ServiceAccount")
    return space
