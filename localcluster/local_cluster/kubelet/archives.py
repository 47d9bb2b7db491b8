"""The images of a kubelet node as archives that containerd imports, kept in the cache.

pause and Envoy are packed here: the one from its built program, the other from its wheel with the libraries
of this machine. Headroom's own come from the source tree's images/, built anew when the source has changed.
"""

import hashlib
import io
import json
import platform
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from local_cluster.binaries import Progress, image_cache_directory
from local_cluster.errors import BuildError
from local_cluster.images import DEFAULT_IMAGES
from local_cluster.kubelet.settings import PAUSE_IMAGE

_TREE: Final = Path(__file__).resolve().parents[3]
_BUILDER: Final = _TREE / "images" / "archive_images.py"
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
#: Image of the standalone proxy in the manifests; a test compares the two.
ENVOY_IMAGE: Final = "docker.io/envoyproxy/envoy:v1.40.0"
_KEPT: Final = 4
_ERROR_BYTES: Final = 800
#: Marks the builder's lines that name an archive.
ARCHIVE_MARK: Final = "archive "


def ensure_archives(programs: Path, progress: Progress) -> list[Path]:
    """Return the archives of every image that the demo's pods run.

    Raises:
        BuildError: one could not be made; the text says why.
    """
    folder = image_cache_directory()
    folder.mkdir(parents=True, exist_ok=True)
    pause = packed(folder, PAUSE_IMAGE, {"/pause": programs / "pause"}, "/pause")
    envoy = DEFAULT_IMAGES.get("envoyproxy/envoy")
    if envoy is None:
        raise BuildError("Envoy is not installed: make setup")
    binary = Path(envoy.argv[0])
    files = {"/usr/local/bin/envoy": binary, **_libraries(binary)}
    proxy = packed(folder, ENVOY_IMAGE, files, "/usr/local/bin/envoy")
    return [pause, proxy, *_own_images(folder, progress)]


def _own_images(folder: Path, progress: Progress) -> list[Path]:
    if not _BUILDER.is_file():
        raise BuildError(f"a kubelet node runs images that are built from a source tree: no {_BUILDER} here")
    progress("the images of Headroom: taken from the cache, or built (about 4 minutes the first time)")
    found: list[Path] = []
    argv = [sys.executable, str(_BUILDER), f"--output={folder}"]
    with subprocess.Popen(  # noqa: S603 - this interpreter, no shell
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=_TREE
    ) as builder:
        assert builder.stdout is not None  # noqa: S101 - Popen got stdout=PIPE
        last = ""
        for line in builder.stdout:
            if line.startswith(ARCHIVE_MARK):
                found.append(Path(line.removeprefix(ARCHIVE_MARK).strip()))
            elif line.startswith(("== ", "making ")):
                progress(line.strip().removeprefix("== "))
            last = (last + line)[-_ERROR_BYTES:]
    if builder.returncode != 0:
        raise BuildError(f"the images could not be built: {' | '.join(last.splitlines()[-4:])}")
    return found


def _libraries(program: Path) -> dict[str, Path]:
    """Return the shared libraries that a program loads, by the paths at which it looks for them."""
    done = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False)  # noqa: S603, S607
    words = [line.split() for line in done.stdout.splitlines()]
    paths = [word for line in words for word in line if word.startswith("/")]
    return {path: Path(path).resolve() for path in paths}


def packed(folder: Path, image: str, files: Mapping[str, Path], entry_point: str) -> Path:
    """Return the archive of an image that has these files alone; its name has their digest."""
    digest = hashlib.sha256()
    for name, source in sorted(files.items()):
        stat = source.stat()
        digest.update(f"{name} {source} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    name = image.rpartition("/")[2].partition(":")[0]
    target = folder / f"{name}-{digest.hexdigest()[:16]}.tar"
    if not target.exists():
        fresh = target.with_suffix(".new")
        _pack(fresh, image, files, entry_point)
        fresh.rename(target)
    prune(folder, name)
    return target


def _pack(target: Path, image: str, files: Mapping[str, Path], entry_point: str) -> None:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for name, source in sorted(files.items()):
            entry = archive.gettarinfo(str(source), name.lstrip("/"))
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mode = 0o755
            with source.open("rb") as file:
                archive.addfile(entry, file)
        for name in ("tmp", "etc"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(entry)
    machine = platform.machine()
    configuration = json.dumps(
        {
            "architecture": _ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "config": {"Entrypoint": [entry_point], "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]},
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{hashlib.sha256(layer.getbuffer()).hexdigest()}"],
            },
        }
    )
    manifest = [{"Config": "config.json", "RepoTags": [image], "Layers": ["layer.tar"]}]
    parts = {
        "layer.tar": layer.getvalue(),
        "config.json": configuration.encode(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    with tarfile.open(target, mode="w") as archive:
        for name, content in parts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def prune(folder: Path, name: str) -> None:
    """Remove all but the newest archives of an image."""
    held = sorted(folder.glob(f"{name}-????????????????.tar"), key=lambda each: each.stat().st_mtime)
    for old in held[:-_KEPT]:
        old.unlink(missing_ok=True)
