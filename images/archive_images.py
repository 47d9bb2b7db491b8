"""Builds the images on Debian's base and writes each to an archive, for a node that reaches no registry.

`python images/archive_images.py --output FOLDER`, as root; prints a line `archive PATH` for each image. The
storage is the one of `make test-images`, so that both share their layers. An image that has not changed keeps
its archive.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from build_images import Build, BuildError, build_all, digest, find_engine, lay_out, project_version
from debian_base import NoBaseError, ensure_debian_base

#: Images are named as a kubelet completes a bare name.
REGISTRY = "docker.io/library"


@contextmanager
def storage(folder: Path) -> Iterator[list[str]]:
    """Yield buildah's command with its storage in a folder, and undo the mount that it leaves there."""
    options = [f"--root={folder / 'storage'}", f"--runroot={folder / 'run'}"]
    before = (folder / "storage/overlay").is_mount()
    try:
        yield [*find_engine("buildah"), *options]
    finally:
        if not before and (folder / "storage/overlay").is_mount():
            subprocess.run(["umount", str(folder / "storage/overlay")], check=False)


def archives(build: Build, output: Path) -> list[Path]:
    """Return the archives of all images; nothing is built when those of the same source are there."""
    notes = output / f"built-{_source_digest(build)}.json"
    if notes.exists() and all(Path(each).exists() for each in json.loads(notes.read_text())):
        return [Path(each) for each in json.loads(notes.read_text())]
    made = [write_archive(build, reference, output) for reference in build_all(build).values()]
    fresh = notes.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps([str(each) for each in made]))
    fresh.rename(notes)
    return made


def _source_digest(build: Build) -> str:
    """Return the digest of all that the images are built from."""
    whole = hashlib.sha256(digest(build, build.base).encode())
    with tempfile.TemporaryDirectory() as folder:
        lay_out(build, Path(folder))
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                whole.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
                whole.update(path.read_bytes())
    return whole.hexdigest()[:16]


def write_archive(build: Build, reference: str, output: Path) -> Path:
    """Return the archive of a built image, written unless one of the same digest is there."""
    name = reference.rpartition("/")[2].partition(":")[0]
    target = output / f"{name}-{digest(build, reference)[:16]}.tar"
    if target.exists():
        os.utime(target)
        return target
    fresh = target.with_suffix(f".{os.getpid()}")
    try:
        command = [*build.engine, "push", "--quiet", reference, f"docker-archive:{fresh}:{reference}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BuildError(f"{reference} cannot be written to {output}: {done.stderr.strip()[-400:]}")
        fresh.rename(target)
    finally:
        fresh.unlink(missing_ok=True)
    for old in sorted(output.glob(f"{name}-????????????????.tar"), key=lambda each: each.stat().st_mtime)[
        :-4
    ]:
        old.unlink(missing_ok=True)
    return target


def main() -> int:
    """Build, write, print. Exit status 0, or 1 with a sentence."""
    parser = argparse.ArgumentParser(prog="archive_images.py", description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    os.environ.pop("SOURCE_DATE_EPOCH", None)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headroom"
    given.output.mkdir(parents=True, exist_ok=True)
    try:
        with storage(cache / "images") as engine, tempfile.TemporaryDirectory() as bills:
            build = Build(
                engine=engine,
                base=ensure_debian_base(engine),
                registry=REGISTRY,
                version=project_version(),
                output=Path(bills),
            )
            for archive in archives(build, given.output):
                print(f"archive {archive}", flush=True)
    except (BuildError, NoBaseError) as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    if shutil.which("buildah") is None:
        sys.exit("buildah is not installed: apt-get install buildah")
    sys.exit(main())
