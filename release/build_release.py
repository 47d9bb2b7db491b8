"""`make release VERSION=...`: everything of one version, into dist/headroom-VERSION with its checksums.

The same commit makes the same bytes: times are the commit's, the order of files is fixed, and nothing of the
machine is in the files. The images' layers are, too, if they are built on the same base.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from build_images import Build, BuildError, build_all, find_engine
from debian_base import NoBaseError, ensure_debian_base
from image_contents import IMAGES
from versions import TREE, VERSION, differing, tree_version

BASE_MANIFESTS: Final = "manifests/base"
GIE_CRDS: Final = "manifests/gie-crds"
SUMS: Final = "SHA256SUMS"


class ReleaseError(Exception):
    """The release cannot be made; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What to release, and from where."""

    version: str
    epoch: int
    """Time of the commit, in seconds since 1970: the time of every file."""
    registry: str = ""
    """Registry and path that the manifests and the chart's default value name; "" for bare image names."""
    tree: Path = TREE


def check(version: str, tree: Path, *, dirty: bool) -> list[str]:
    """Return remarks on the tree. Raises ReleaseError when it is not that of the version, or not clean."""
    if not VERSION.fullmatch(version):
        raise ReleaseError(f"VERSION={version} is no version: use three numbers, such as 0.2.0")
    if (own := tree_version(tree)) != version:
        raise ReleaseError(
            f"the tree is of version {own}: `make version VERSION={version}` writes the new one; commit it"
        )
    if wrong := differing(version, tree):
        raise ReleaseError(f"`make version VERSION={version}` has to mend: " + "; ".join(wrong))
    remarks = []
    if f"## {version} - unreleased" in (changes := (tree / "CHANGELOG.md").read_text("utf-8")):
        remarks.append(f"CHANGELOG.md calls {version} unreleased: write the date before you publish")
    elif f"## {version} " not in changes and f"## {version}\n" not in changes:
        raise ReleaseError(f"CHANGELOG.md has no section for {version}")
    if changed := _git(tree, "status", "--porcelain"):
        first = changed.splitlines()[0].strip()
        if not dirty:
            raise ReleaseError(
                f"the tree differs from its commit ({first}): commit first; DIRTY=1 builds all the same, "
                "not for publishing"
            )
        remarks.append(f"NOT FOR PUBLISHING: the tree differs from its commit ({first})")
    return remarks


def build_python(release: Release, target: Path) -> None:
    """Build the wheel and the sdist."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(release.epoch)}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(target)]
    done = subprocess.run(
        command, cwd=release.tree, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ReleaseError(f"hatchling: {done.stderr.strip()[-1000:]}")


def build_chart(release: Release, target: Path) -> None:
    """Write the chart package as `helm package` would, with constant times."""
    chart = release.tree / "charts" / "headroom"
    files = [release.tree / name for name in _git(release.tree, "ls-files", "charts/headroom").splitlines()]
    # Helm wants Chart.yaml first.
    files.sort(key=lambda path: (path.name != "Chart.yaml", str(path)))
    entries = []
    for path in files:
        content = path.read_bytes()
        if path == chart / "values.yaml" and release.registry:
            content = _set_registry(content, release.registry)
        entries.append((f"headroom/{path.relative_to(chart)}", content))
    package = target / f"headroom-{release.version}.tgz"
    with package.open("wb") as out, gzip.GzipFile("", "wb", mtime=release.epoch, fileobj=out) as packed:
        _write_tar(packed, entries, release.epoch)


def _set_registry(values: bytes, registry: str) -> bytes:
    empty = b'\nregistry: ""\n'
    if values.count(empty) != 1:
        raise ReleaseError('charts/headroom/values.yaml has no line `registry: ""`')
    return values.replace(empty, f"\nregistry: {registry}\n".encode())


def build_manifests(release: Release, target: Path) -> None:
    """Write one file of the base, and one of the extension's CRDs, each in an order that can be applied."""
    bundles = {
        f"headroom-{release.version}.yaml": BASE_MANIFESTS,
        f"gie-crds-{release.version}.yaml": GIE_CRDS,
    }
    for name, folder in bundles.items():
        listed = yaml.safe_load((release.tree / folder / "kustomization.yaml").read_text("utf-8"))[
            "resources"
        ]
        parts = [(release.tree / folder / each).read_text("utf-8").strip("\n") for each in listed]
        text = "\n---\n".join(part.removeprefix("---\n") for part in parts) + "\n"
        for image in IMAGES.values():
            bare = f" {image.name}:{release.version}"
            if release.registry:
                text = text.replace(bare, f" {release.registry.rstrip('/')}{bare.replace(' ', '/')}")
        (target / name).write_text(text, "utf-8")


def build_images(release: Release, target: Path, engine: str, base: str) -> None:
    """Build the images and write each as an OCI archive, with its bill of materials beside."""
    command = find_engine(engine)
    build = Build(
        engine=command,
        base=ensure_debian_base(command) if base == "debian" else base,
        registry=release.registry,
        version=release.version,
        output=target,
        tree=release.tree,
    )
    if build.kind == "docker":
        raise BuildError("docker writes no OCI archive that can be compared: install podman or buildah")
    for key, reference in build_all(build).items():
        archive = target / f"{IMAGES[key].name}-{release.version}.oci.tar"
        write_archive(build, reference, archive, release.epoch)


def write_archive(build: Build, reference: str, archive: Path, epoch: int) -> None:
    """Write an image as an OCI archive that names it by its reference. Raises BuildError."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        layout = Path(folder, "oci")
        pushed = subprocess.run(
            [*build.engine, "push", "--quiet", reference, f"oci:{layout}:{reference}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if pushed.returncode != 0:
            raise BuildError(pushed.stderr.strip())
        _name_for_containerd(layout / "index.json", reference)
        inside = sorted(path for path in layout.rglob("*") if path.is_file())
        with archive.open("wb") as out:
            _write_tar(out, ((str(path.relative_to(layout)), path) for path in inside), epoch)


def _name_for_containerd(index: Path, reference: str) -> None:
    """Add the annotation by which containerd names an image that it imports: with a registry in any case."""
    content = json.loads(index.read_text("utf-8"))
    host, slash, _ = reference.partition("/")
    has_registry = bool(slash) and ("." in host or ":" in host or host == "localhost")
    for manifest in content["manifests"]:
        full = reference if has_registry else f"docker.io/{'' if slash else 'library/'}{reference}"
        manifest["annotations"]["io.containerd.image.name"] = full
    index.write_text(json.dumps(content, sort_keys=True), "utf-8")


def _write_tar(
    out: io.RawIOBase | io.BufferedIOBase | gzip.GzipFile,
    entries: Iterable[tuple[str, bytes | Path]],
    epoch: int,
) -> None:
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            info.mtime, info.mode = epoch, 0o644
            if isinstance(content, Path):
                info.size = content.stat().st_size
                with content.open("rb") as source:
                    tar.addfile(info, source)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def write_sums(folder: Path) -> list[str]:
    """Write SHA256SUMS, which `sha256sum -c` reads; return its lines."""
    lines = [f"{_digest(path)}  {path.name}" for path in sorted(folder.iterdir()) if path.name != SUMS]
    (folder / SUMS).write_text("\n".join(lines) + "\n", "utf-8")
    return lines


def _digest(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _git(tree: Path, *arguments: str) -> str:
    try:
        asked = subprocess.run(
            ["git", "-C", str(tree), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise ReleaseError("git is not installed, and a release is made from a commit") from None
    if asked.returncode != 0:
        raise ReleaseError(f"a release is made from a commit: {asked.stderr.strip()}")
    return asked.stdout.strip()


def main(arguments: list[str] | None = None) -> int:
    """Make the release; exit status 0, or 1 with a sentence."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__.partition("\n")[0])
    parser.add_argument("version")
    parser.add_argument("--registry", default="", help="what the manifests' image names begin with")
    parser.add_argument("--output", type=Path, default=TREE / "dist")
    parser.add_argument("--no-images", action="store_true", help="leave the images out")
    parser.add_argument("--engine", default="", help="podman or buildah; default: the first that is there")
    parser.add_argument("--base", default="", help="as in `make images`")
    parser.add_argument("--dirty", action="store_true", help="build from a tree that differs from its commit")
    given = parser.parse_args(arguments)
    try:
        remarks = check(given.version, TREE, dirty=given.dirty)
        epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or _git(TREE, "log", "-1", "--format=%ct"))
        release = Release(version=given.version, epoch=epoch, registry=given.registry)
        given.output.mkdir(parents=True, exist_ok=True)
        folder = given.output / f"headroom-{release.version}"
        with tempfile.TemporaryDirectory(dir=given.output) as scratch:
            made = Path(scratch, "made")
            made.mkdir()
            build_python(release, made)
            build_chart(release, made)
            build_manifests(release, made)
            if given.no_images:
                remarks.append("the images are left out")
            else:
                build_images(release, made, given.engine, given.base)
            lines = write_sums(made)
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)
    except (ReleaseError, BuildError, NoBaseError) as error:
        print(f"make release: {error}", file=sys.stderr)
        if isinstance(error, BuildError | NoBaseError):
            print("make release IMAGES=no leaves the images out", file=sys.stderr)
        return 1
    print("\n".join([*lines, f"== {folder}", *(f"== {remark}" for remark in remarks)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
