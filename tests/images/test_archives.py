"""An image as an OCI archive of a release: the same bytes each time, and the same image when it is loaded."""

import json
import subprocess
import tarfile
from pathlib import Path

from build_images import digest
from build_release import write_archive
from image_builds import Built


def test_an_archive_is_reproducible_and_loads_as_the_image(built: Built, tmp_path: Path) -> None:
    name = built.names["epp"]
    one, other = tmp_path / "one.tar", tmp_path / "other.tar"
    for archive in (one, other):
        write_archive(built.build, name, archive, 1790000000)
    assert one.read_bytes() == other.read_bytes()

    with tarfile.open(one) as tar:
        index = json.load(tar.extractfile("index.json"))  # type: ignore[arg-type]
    (annotations,) = (each["annotations"] for each in index["manifests"])
    assert annotations["org.opencontainers.image.ref.name"] == name
    assert annotations["io.containerd.image.name"] == name

    before = digest(built.build, name)
    loaded = subprocess.run(
        [*built.build.engine, "load", "--input", str(one)], capture_output=True, text=True, check=False
    )
    assert loaded.returncode == 0, loaded.stderr
    assert digest(built.build, name) == before
