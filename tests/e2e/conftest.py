"""One local cluster for all end-to-end tests: real API server, operator as a pod, quickstart, real Envoy."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headroom_cli.demo.api import progress
from headroom_cli.demo.main import bring_up, end
from headroom_cli.demo.stage import Stage

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The quickstart's pool, Ready, behind its standalone proxy."""
    directory = tmp_path_factory.mktemp("cluster")
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        made, _ = bring_up(directory)
        yield made
    finally:
        os.chdir(before)
        left = end(directory)
        progress(f"e2e cluster ended, {len(left)} processes left")
    assert left == []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test here the mark and time for a slow machine."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(900))
