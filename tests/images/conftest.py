"""The images, built from a base of Debian's packages into a storage that outlives the run.

`make test-images` sees to the tools. Nothing is left but that storage, which keeps a second run short.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from build_images import Build, build_all, project_version
from containers import Engine
from debian_base import ensure_debian_base
from image_builds import Built
from local_cluster.binaries import cache_directory

#: The storage begins anew when layers of earlier sources have made it larger than this.
MOST_BYTES = 8 << 30


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    podman = shutil.which("podman")
    if os.geteuid() != 0 or podman is None:
        pytest.fail("the tests of the images need root and podman; make test-images says what to install")
    folder = cache_directory().parents[1] / "images"
    if _size(folder) > MOST_BYTES:
        shutil.rmtree(folder)
    engine = Engine.at(podman, folder)
    command = list(engine.command)
    build = Build(
        engine=command,
        base=ensure_debian_base(command),
        registry="localhost/under-test",
        version=project_version(),
        output=tmp_path_factory.mktemp("sbom"),
    )
    try:
        yield Built(engine, build, build_all(build))
    finally:
        engine.close()


def _size(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test here the mark, and the first one time to build."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.images)
            item.add_marker(pytest.mark.timeout(1800))
