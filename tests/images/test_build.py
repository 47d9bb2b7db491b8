"""What is in the images, and that equal sources give equal images."""

import json
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from build_images import TREE, build_all, digest
from containers import Engine
from image_builds import Built
from image_contents import IMAGES
from image_lock import locks, normalized


@contextmanager
def root_of(built: Built, key: str) -> Iterator[Path]:
    """Mount an image to look at its files."""
    name = built.names[key]
    try:
        yield Path(built.engine.ask("image", "mount", name))
    finally:
        built.engine.ask("image", "umount", name)


def layers(built: Built, name: str) -> list[str]:
    asked = built.engine.ask("image", "inspect", "--format={{json .RootFS.Layers}}", name)
    found: list[str] = json.loads(asked)
    return found


@pytest.mark.parametrize("key", IMAGES)
def test_an_image_has_its_commands_and_no_tools(built: Built, key: str) -> None:
    with root_of(built, key) as root:
        commands = {
            path.name
            for path in root.rglob("*")
            if path.is_file()
            and not path.is_symlink()
            and path.stat().st_mode & 0o111
            and not path.name.startswith("ld-linux")
            and ".so" not in path.name
            and path.suffix != ".py"
        }
        (python,) = (name for name in commands if name.startswith("python3."))
        assert commands == {IMAGES[key].command, *IMAGES[key].also, python}
        for absent in ("pip", "setuptools", "ensurepip", "hatchling", "pytest"):
            assert not list(root.rglob(absent)), absent
        assert not (root / "etc/passwd").exists()


@pytest.mark.parametrize("key", IMAGES)
def test_an_image_is_compiled_owned_by_root_and_not_writable(built: Built, key: str) -> None:
    with root_of(built, key) as root:
        for path in root.rglob("*"):
            found = path.lstat()
            assert (found.st_uid, found.st_gid) == (0, 0), path
            if stat.S_ISLNK(found.st_mode):
                continue
            assert not found.st_mode & (stat.S_ISUID | stat.S_ISGID), path
            assert path == root / "tmp" or not found.st_mode & 0o022, path
        missing = [path for path in root.rglob("*.py") if not _compiled(path)]
    # Templates that are no Python, as some libraries ship them.
    assert [path.name for path in missing if path.parts[-2] != "templates"] == []


def _compiled(source: Path) -> bool:
    """Tell whether a .pyc file is there that Python takes without a look at the source."""
    files = list((source.parent / "__pycache__").glob(f"{source.stem}.cpython-*.pyc"))
    return any(int.from_bytes(file.read_bytes()[4:8], "little") == 0b01 for file in files)


@pytest.mark.parametrize("key", IMAGES)
def test_the_bill_of_materials_names_all_that_the_lock_gives(built: Built, key: str) -> None:
    bill: dict[str, Any] = json.loads(built.sbom(key).read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    parts = {part["purl"]: part for part in bill["components"]}
    assert len(parts) == len(bill["components"])
    lock = locks((TREE / "pyproject.toml").read_text(), (TREE / "requirements.lock").read_text(), IMAGES)[key]
    locked = {line.partition(" ")[0] for line in lock.splitlines() if "==" in line}
    named = {
        f"{normalized(part['name'])}=={part['version']}"
        for purl, part in parts.items()
        if "pkg:pypi/" in purl
    }
    own = f"headroom-operator=={built.build.version}"
    assert own in named
    assert named - {own} <= locked
    # The lock has two versions of a name where Python's version decides, and names for other systems.
    twice = {"numpy", "scipy", "xgboost-cpu"}
    assert {pin.partition("==")[0] for pin in locked - named} <= twice | {"colorama", "tzdata"}
    assert {p["name"] for p in parts.values() if p["purl"].startswith("pkg:deb/")} >= {"libc6", "libssl3"}
    references = {part["bom-ref"] for part in bill["components"]}
    assert all(set(link["dependsOn"]) <= references for link in bill["dependencies"])
    with root_of(built, key) as root:
        inside = root / "usr/share/sbom" / f"{IMAGES[key].name}.cdx.json"
        assert inside.read_bytes() == built.sbom(key).read_bytes()


@pytest.mark.parametrize("key", IMAGES)
def test_an_image_says_what_it_is(built: Built, key: str) -> None:
    (seen,) = json.loads(built.engine.ask("image", "inspect", built.names[key]))
    assert seen["Config"]["User"] == "65532:65532"
    assert seen["Config"]["Entrypoint"] == [IMAGES[key].command]
    labels = {name.rpartition(".")[2]: value for name, value in seen["Config"]["Labels"].items()}
    assert labels["version"] == built.build.version
    assert labels["title"] == IMAGES[key].title
    assert built.names[key].endswith(f":{built.build.version}")
    assert len(labels["revision"].removesuffix("-dirty")) == 40


def test_what_led_to_the_package_index_is_in_no_image(built: Built) -> None:
    for key in IMAGES:
        with root_of(built, key) as root:
            assert not list(root.rglob("pip.conf"))
            assert not (root / "run").exists()
        history = built.engine.ask(
            "image", "history", "--no-trunc", "--format={{.CreatedBy}}", built.names[key]
        )
        assert "index-url" not in history


def test_two_builds_of_one_source_are_equal(built: Built) -> None:
    # In a storage of its own, because its layers are of no use later; it reads the base from the other one.
    # Not in pytest's folder: podman refuses paths that long.
    with tempfile.TemporaryDirectory() as folder:
        other = Engine.at(built.engine.command[0], Path(folder), reads=built.engine)
        try:
            again = replace(built.build, engine=list(other.command), fresh=True)
            (name,) = build_all(again, ["simulator"]).values()
            assert digest(again, name) == digest(built.build, built.names["simulator"])
        finally:
            other.close()


def test_a_change_of_the_source_leaves_interpreter_and_dependencies(built: Built, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(TREE, tree, ignore=shutil.ignore_patterns(".*", "tests", "docs", "dist", "build"))
    changed = tree / "simulator/model_server_sim/main.py"
    changed.write_text(changed.read_text() + "\n# One more line.\n")
    other = replace(built.build, registry="localhost/changed", tree=tree)
    (name,) = build_all(other, ["simulator"]).values()
    before, after = layers(built, built.names["simulator"]), layers(built, name)
    assert len(before) == len(after) == 3
    assert [one == two for one, two in zip(before, after, strict=True)] == [True, True, False]


def test_buildah_builds_the_same_image(built: Built) -> None:
    buildah = shutil.which("buildah")
    if buildah is None:
        pytest.skip("buildah is not there")
    options = [each for each in built.engine.command[1:] if each.startswith(("--root=", "--runroot="))]
    other = replace(built.build, engine=[buildah, *options], registry="localhost/by-buildah")
    (name,) = build_all(other, ["simulator"]).values()
    assert digest(other, name) == digest(built.build, built.names["simulator"])
