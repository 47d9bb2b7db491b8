"""One version, that of pyproject.toml, in every place that names an image; and one list of images."""

import re
from pathlib import Path

from build_images import TREE, Build, project_version
from image_contents import IMAGES
from local_cluster.images import default_images

NAMED = re.compile(r"\b(headroom-[a-z-]+):(\d[\w.-]*)")


def test_every_image_that_the_manifests_and_pages_name_has_this_version() -> None:
    names = {image.name for image in IMAGES.values()}
    found = set()
    for folder in ("manifests", "docs", "operator", "epp", "simulator", "localcluster", "."):
        for file in (TREE / folder).glob("*.md" if folder == "." else "**/*"):
            if file.suffix in {".yaml", ".md"} and "design" not in file.parts:
                found |= set(NAMED.findall(file.read_text()))
    assert {name for name, _ in found} == names
    assert {version for _, version in found} == {project_version()}


def test_the_local_cluster_runs_the_same_images() -> None:
    own = {name for name in default_images() if name.startswith("headroom-")}
    assert own == {image.name for image in IMAGES.values()}


def test_a_reference_has_registry_name_and_version() -> None:
    build = Build(
        engine=["x"], base="", registry="registry.example.com/team/", version="1.2.3", output=Path()
    )
    assert build.reference(IMAGES["epp"]) == "registry.example.com/team/headroom-epp:1.2.3"
