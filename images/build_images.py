"""`make images`: builds the container images with podman, buildah or docker, and writes their SBOMs beside.

Needs nothing but Python's standard library and one of the engines.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from debian_base import NoBaseError, ensure_debian_base
from image_contents import EPOCH, IMAGES, Contents
from image_lock import locks

TREE: Final = Path(__file__).resolve().parent.parent
ENGINES: Final = ("podman", "buildah", "docker")
#: What of pip's configuration is passed into the build; paths and the rest mean nothing there.
_PIP_SETTINGS: Final = ("index-url", "extra-index-url", "proxy", "retries", "timeout", "trusted-host")


class BuildError(Exception):
    """The images cannot be built; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What to build with, and how to name the result."""

    engine: list[str]
    """The engine's command, with its global options."""
    base: str
    """Reference of the base image; "" for the Containerfile's own."""
    registry: str
    version: str
    output: Path
    """Folder for the SBOMs."""
    tree: Path = TREE
    """The checkout to build from."""
    fresh: bool = False
    """Take no layer from the engine's cache."""

    @property
    def kind(self) -> str:
        """The engine's name."""
        return Path(self.engine[0]).name

    def reference(self, image: Contents) -> str:
        """Return the name under which an image is tagged."""
        prefix = f"{self.registry.rstrip('/')}/" if self.registry else ""
        return f"{prefix}{image.name}:{self.version}"


def project_version() -> str:
    """Return the version that pyproject.toml gives; the images' tags have the same."""
    return str(tomllib.loads((TREE / "pyproject.toml").read_text())["project"]["version"])


def build_all(build: Build, images: Sequence[str] = tuple(IMAGES)) -> dict[str, str]:
    """Build the images with these keys; return their references. Raises BuildError."""
    built = {}
    with tempfile.TemporaryDirectory() as folder, _pip_secrets() as secrets:
        lay_out(build, Path(folder))
        for key in images:
            print(f"== {build.reference(IMAGES[key])}", flush=True)
            _call([*build.engine, *_build_arguments(build, key, secrets, Path(folder))], show=True)
            _extract_sbom(build, IMAGES[key])
            built[key] = build.reference(IMAGES[key])
    return built


def digest(build: Build, reference: str) -> str:
    """Return what identifies an image's content: its configuration's digest, which covers all its layers."""
    kind = ["--type=image"] if build.kind == "buildah" else ["--type=image", "--format={{.Id}}"]
    if build.kind == "buildah":
        kind.append("--format={{.FromImageID}}")
    return _call([*build.engine, "inspect", *kind, reference]).strip().removeprefix("sha256:")


def _build_arguments(build: Build, key: str, secrets: Sequence[str], folder: Path) -> list[str]:
    arguments = [
        "build",
        f"--file={folder / f'{key}.Containerfile'}",
        f"--tag={build.reference(IMAGES[key])}",
    ]
    arguments += [f"--build-arg=IMAGE={key}", *([f"--build-arg=BASE={build.base}"] if build.base else [])]
    arguments += [f"--secret={secret}" for secret in secrets]
    if build.fresh:
        arguments.append("--no-cache")
    if build.kind == "docker":
        arguments += [f"--build-arg=SOURCE_DATE_EPOCH={EPOCH}", "--provenance=false"]
    else:
        # chroot: the build runs our own scripts only, and so it needs no OCI runtime.
        arguments += ["--isolation=chroot", "--network=host", "--layers", f"--timestamp={EPOCH}"]
    return [*arguments, str(folder)]


def _last_lines(build: Build, image: Contents) -> str:
    """Return the end of an image's Containerfile.

    Labels are text here and no options or arguments: those are in every layer's cached configuration as well,
    so that an image would depend on which commit built its lower layers first.
    """
    labels = {
        "title": image.title,
        "version": build.version,
        "revision": _revision(build.tree),
        "licenses": "Apache-2.0",
        "vendor": "Headroom",
    }
    pairs = (f"org.opencontainers.image.{name}={json.dumps(value)}" for name, value in labels.items())
    settings = [f"ENV {name}={json.dumps(value)}\n" for name, value in image.environment.items()]
    return f"{''.join(settings)}ENTRYPOINT {json.dumps([image.command])}\nLABEL {' '.join(pairs)}\n"


def lay_out(build: Build, target: Path) -> None:
    """Write the folder that the images are built from: Containerfiles, scripts, locks, source.

    Modes and times are the same wherever the tree was checked out. Raises BuildError.
    """
    tree = build.tree
    text = (tree / "pyproject.toml").read_text()
    for key, image in IMAGES.items():
        lines = (tree / "images/Containerfile").read_text() + _last_lines(build, image)
        (target / f"{key}.Containerfile").write_text(lines)
    try:
        parts = locks(text, (tree / "requirements.lock").read_text(), IMAGES)
    except ValueError as error:
        raise BuildError(str(error)) from None
    for script in ("assemble_image.py", "image_contents.py", "image_sbom.py"):
        shutil.copyfile(tree / "images" / script, target / script)
    for folder in ("locks", "source"):
        (target / folder).mkdir()
    for name, part in parts.items():
        (target / "locks" / f"{name}.lock").write_text(part)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(tree / file, target / "source" / file)
    for package in tomllib.loads(text)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        shutil.copytree(
            tree / package, target / "source" / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, (EPOCH, EPOCH))


@contextmanager
def _pip_secrets() -> Iterator[list[str]]:
    """Yield the engine's --secret options for this machine's package index and certificate authorities."""
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    # A line is section.name='value'. Last comes what wins, as in pip: the environment.
    settings = {}
    for line in sorted(asked.stdout.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        settings[name.rpartition(".")[2]] = value.strip("'\"")
    with tempfile.TemporaryDirectory() as folder:
        text = ["[global]", *(f"{name} = {settings[name]}" for name in _PIP_SETTINGS if name in settings)]
        options = []
        if (authority := settings.get("cert")) and Path(authority).is_file():
            text.append("cert = /run/secrets/ca.crt")
            options.append(f"id=ca.crt,src={authority}")
        if len(text) > 1:
            file = Path(folder, "pip.conf")
            file.touch(mode=0o600)
            file.write_text("\n".join(text).replace("\\n", "\n    ") + "\n")
            options.append(f"id=pip.conf,src={file}")
        yield options


def _extract_sbom(build: Build, image: Contents) -> None:
    inside = f"usr/share/sbom/{image.name}.cdx.json"
    target = build.output / f"{image.name}-{build.version}.cdx.json"
    build.output.mkdir(parents=True, exist_ok=True)
    reference = build.reference(image)
    if build.kind == "buildah":
        container = _call([*build.engine, "from", "--pull-never", reference]).strip()
        try:
            mounted = _call([*build.engine, "mount", container]).strip()
            shutil.copyfile(Path(mounted, inside), target)
        finally:
            _call([*build.engine, "rm", container])
    else:
        container = _call([*build.engine, "create", reference]).strip()
        try:
            _call([*build.engine, "cp", f"{container}:/{inside}", str(target)])
        finally:
            _call([*build.engine, "rm", container])


def _revision(tree: Path) -> str:
    """Return the commit, with a mark when the tree differs from it; "" outside of a repository."""
    asked = subprocess.run(
        ["git", "-C", str(tree), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip()


def _call(command: Sequence[str], *, show: bool = False) -> str:
    done = subprocess.run(
        command, stdout=None if show else subprocess.PIPE, stderr=None, text=True, check=False
    )
    if done.returncode != 0:
        raise BuildError(f"{Path(command[0]).name} {command[1]}: exit status {done.returncode}")
    return done.stdout or ""


def find_engine(asked: str) -> list[str]:
    """Return the command of the engine asked for, or of the first that is here. Raises BuildError."""
    for name in (asked,) if asked else ENGINES:
        if (found := shutil.which(name)) is not None:
            return [found]
    advice = (
        "apt-get install podman"
        if not asked
        else f"install {asked}, or name another: ENGINE=podman|docker|buildah"
    )
    raise BuildError(f"no container engine ({asked or ', '.join(ENGINES)}): {advice}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build; print each image's name and digest. Exit status 0, or 1 with a sentence."""
    parser = argparse.ArgumentParser(prog="make images", description="Builds Headroom's container images.")
    parser.add_argument(
        "--engine", default="", choices=("", *ENGINES), help="default: the first that is there"
    )
    parser.add_argument("--base", default="", help="base image, or `debian`: made from Debian's packages")
    parser.add_argument("--registry", default="", help="what the names begin with")
    parser.add_argument(
        "--version", default=project_version(), help="tag (default: the version of the project)"
    )
    parser.add_argument("--output", type=Path, default=TREE / "dist/images", help="folder for the SBOMs")
    given = parser.parse_args(arguments)
    os.environ.pop("SOURCE_DATE_EPOCH", None)
    try:
        engine = find_engine(given.engine)
        build = Build(
            engine=engine,
            base=ensure_debian_base(engine) if given.base == "debian" else given.base,
            registry=given.registry,
            version=given.version,
            output=given.output,
        )
        built = build_all(build)
        for reference in built.values():
            print(f"{reference}  sha256:{digest(build, reference)}")
    except (BuildError, NoBaseError) as error:
        print(f"make images: {error}", file=sys.stderr)
        if not given.base:
            print(
                "Where no registry can be reached: make images BASE=debian (root, on Debian)", file=sys.stderr
            )
        return 1
    print(f"SBOMs are in {given.output}. Push the images with your own tool.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
