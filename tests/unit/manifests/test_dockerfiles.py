"""The images: what they start, as whom, and whether what they copy is there. They are not built here."""

import json
import re
import tomllib
from typing import Any

import pytest

from manifest_files import BASE, QUICKSTART, ROOT, kustomized, objects

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
ENTRYPOINTS = {
    "operator": ["headroom-operator"],
    "epp": ["headroom-epp"],
    "simulator": ["python", "-m", "model_server_sim"],
}


def instructions(folder: str) -> list[tuple[str, str]]:
    text = (ROOT / folder / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def values(folder: str, word: str) -> list[str]:
    return [rest for found, rest in instructions(folder) if found == word]


@pytest.mark.parametrize(("folder", "entrypoint"), ENTRYPOINTS.items())
def test_an_image_starts_its_component(folder: str, entrypoint: list[str]) -> None:
    (declared,) = values(folder, "ENTRYPOINT")

    assert json.loads(declared) == entrypoint
    assert entrypoint[0] == "python" or entrypoint[0] in PROJECT["project"]["scripts"]
    assert values(folder, "CMD") == []


@pytest.mark.parametrize("folder", ENTRYPOINTS)
def test_an_image_holds_all_that_the_build_takes_in(folder: str) -> None:
    sources = {
        source for rest in values(folder, "COPY") if "--from" not in rest for source in rest.split()[:-1]
    }

    assert all((ROOT / source).exists() for source in sources)
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {package.split("/")[0] for package in packages} <= sources
    assert {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]} <= sources
    (installed,) = re.findall(r'"\.\[(\w+)\]"', " ".join(values(folder, "RUN")))
    assert installed in PROJECT["project"]["optional-dependencies"]


@pytest.mark.parametrize("folder", ENTRYPOINTS)
def test_an_image_runs_as_the_user_that_the_manifests_name(folder: str) -> None:
    pods = [
        found["spec"]["template"]["spec"]
        for found in (*kustomized(BASE), *objects(*QUICKSTART.glob("*.yaml")))
        if found["kind"] == "Deployment"
    ]
    (user,) = values(folder, "USER")

    for pod in pods:
        security = pod["securityContext"]
        assert user == f"{security['runAsUser']}:{security['runAsGroup']}"


def test_the_makefile_builds_each_image_under_the_name_that_the_manifests_use() -> None:
    text = (ROOT / "Makefile").read_text()

    for folder, image in (
        ("operator", "headroom-operator"),
        ("epp", "headroom-epp"),
        ("simulator", "headroom-model-server-sim"),
    ):
        assert f"{folder}:{image}" in text
