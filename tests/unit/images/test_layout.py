"""The folder that the images are built from: what they start, as whom, and what goes in."""

import json
import tomllib
from pathlib import Path

import pytest

from build_images import TREE, Build, BuildError, find_engine, lay_out
from image_contents import EPOCH, IMAGES
from manifest_files import BASE, QUICKSTART, kustomized, objects

PROJECT = tomllib.loads((TREE / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("layout")
    lay_out(Build(engine=["x"], base="", registry="", version="1.2.3", output=made), made)
    return made


def instructions(folder: Path, key: str) -> list[tuple[str, str]]:
    text = (folder / f"{key}.Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


@pytest.mark.parametrize("key", IMAGES)
def test_an_image_starts_its_own_command(folder: Path, key: str) -> None:
    found = dict(instructions(folder, key))
    assert json.loads(found["ENTRYPOINT"]) == [IMAGES[key].command]
    assert IMAGES[key].command in PROJECT["project"]["scripts"]
    assert "CMD" not in found
    assert 'image.version="1.2.3"' in found["LABEL"]


@pytest.mark.parametrize("key", IMAGES)
def test_an_image_runs_as_the_user_that_the_manifests_name(folder: Path, key: str) -> None:
    user = dict(instructions(folder, key))["USER"]
    for found in (*kustomized(BASE), *objects(*QUICKSTART.glob("*.yaml"))):
        if found["kind"] == "Deployment":
            security = found["spec"]["template"]["spec"]["securityContext"]
            assert user == f"{security['runAsUser']}:{security['runAsGroup']}"


def test_all_that_the_wheel_takes_in_is_there(folder: Path) -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]}
    assert [name for name in needed if not (folder / "source" / name).exists()] == []
    for key in IMAGES:
        for word, rest in instructions(folder, key):
            if word == "COPY" and "--from" not in rest:
                sources = rest.replace("${IMAGE}", key).split()[:-1]
                assert [name for name in sources if not (folder / name).exists()] == []


def test_modes_and_times_do_not_depend_on_the_checkout(folder: Path) -> None:
    for path in folder.rglob("*"):
        found = path.stat()
        assert found.st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path
        assert found.st_mtime == EPOCH, path
    assert not list(folder.rglob("__pycache__"))


def test_the_base_is_named_by_digest(folder: Path) -> None:
    (base,) = (rest for word, rest in instructions(folder, "epp") if (word, rest[:5]) == ("ARG", "BASE="))
    assert len(base.partition("@sha256:")[2]) == 64


def test_an_engine_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(BuildError, match="no container engine"):
        find_engine("no-such-engine")
