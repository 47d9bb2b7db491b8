"""Packing a program as an image archive that `ctr images import` and `docker load` read."""

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from local_cluster.kubelet import archives


def test_an_archive_holds_the_files_under_the_images_name(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("binary")
    made = archives.packed(tmp_path, "example.com/team/tool:2", {"/bin/tool": program}, "/bin/tool")
    with tarfile.open(made) as archive:
        (manifest,) = json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]
        configuration = json.load(archive.extractfile(manifest["Config"]))  # type: ignore[arg-type]
        layer = archive.extractfile(manifest["Layers"][0])
        assert layer is not None
        content = layer.read()
        layer.seek(0)
        with tarfile.open(fileobj=layer) as files:
            assert files.getmember("bin/tool").mode == 0o755
    assert manifest["RepoTags"] == ["example.com/team/tool:2"]
    assert configuration["config"]["Entrypoint"] == ["/bin/tool"]
    assert configuration["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content).hexdigest()}"]


def test_an_archive_is_made_anew_only_when_a_file_changes(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("one")
    first = archives.packed(tmp_path, "tool:1", {"/tool": program}, "/tool")
    made = first.stat().st_mtime_ns
    assert archives.packed(tmp_path, "tool:1", {"/tool": program}, "/tool") == first
    assert first.stat().st_mtime_ns == made
    program.write_text("other")
    assert archives.packed(tmp_path, "tool:1", {"/tool": program}, "/tool") != first


@pytest.mark.parametrize("count", [2, 9])
def test_the_cache_keeps_the_newest_archives(tmp_path: Path, count: int) -> None:
    for number in range(count):
        program = tmp_path / "program"
        program.write_text("x" * (number + 1))
        newest = archives.packed(tmp_path, "tool:1", {"/tool": program}, "/tool")
    kept = list(tmp_path.glob("tool-*.tar"))
    assert newest in kept
    assert len(kept) == min(count, 4)
