"""`make release` on a copy of the tree: one version everywhere, the same bytes twice, and refusals that help.

tests/long/test_release.py installs the wheel in a fresh environment; tests/images tests the images' digests.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from build_release import _name_for_containerd
from control_plane import running_control_plane
from inference_operator.core.kinds import Object
from local_cluster.binaries import ensure_helm
from manifest_files import BASE, ROOT
from versions import tree_version

VERSION = tree_version(ROOT)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one commit: the files of this tree as they are now."""
    copy = tmp_path_factory.mktemp("tree")
    listed = git(ROOT, "ls-files", "-co", "--exclude-standard").splitlines()
    for name in listed:
        source, target = ROOT / name, copy / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    git(copy, "init", "-q")
    git(copy, "add", "-A")
    commit(copy)
    return copy


def git(tree: Path, *arguments: str) -> str:
    identity = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@t", "GIT_COMMITTER_NAME": "t"}
    dates = {"GIT_COMMITTER_EMAIL": "t@t", "GIT_AUTHOR_DATE": "@1790000000 +0000"}
    dates["GIT_COMMITTER_DATE"] = dates["GIT_AUTHOR_DATE"]
    done = subprocess.run(
        ["git", "-C", str(tree), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **identity, **dates},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def commit(tree: Path) -> None:
    git(tree, "-c", "commit.gpgsign=false", "commit", "-q", "--allow-empty", "-m", "all")


def release(
    tree: Path, output: Path, *arguments: str, version: str = VERSION
) -> "subprocess.CompletedProcess[str]":
    script = tree / "release" / "build_release.py"
    environment = {key: value for key, value in os.environ.items() if key != "SOURCE_DATE_EPOCH"}
    return subprocess.run(
        [sys.executable, str(script), version, "--no-images", f"--output={output}", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=environment | {"PYTHONPATH": str(tree / "images")},
    )


@pytest.fixture(scope="module")
def made(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("dist")
    done = release(tree, output)
    assert done.returncode == 0, done.stderr
    assert "the images are left out" in done.stdout
    assert "NOT FOR PUBLISHING" not in done.stdout
    return output / f"headroom-{VERSION}"


def test_a_release_has_every_file_and_its_checksums_hold(made: Path) -> None:
    names = {path.name for path in made.iterdir()}
    assert names == {
        "SHA256SUMS",
        f"gie-crds-{VERSION}.yaml",
        f"headroom-{VERSION}.tgz",
        f"headroom-{VERSION}.yaml",
        f"headroom_operator-{VERSION}-py3-none-any.whl",
        f"headroom_operator-{VERSION}.tar.gz",
    }
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"],
        cwd=made,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(": OK") == len(names) - 1


def test_the_same_commit_elsewhere_and_later_makes_the_same_bytes(
    tree: Path, made: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "a" / "longer" / "path"
    elsewhere.parent.mkdir(parents=True)
    git(tree, "clone", "-q", str(tree), str(elsewhere))
    for path in elsewhere.rglob("*.py"):
        os.utime(path, (1, 1))

    done = release(elsewhere, tmp_path / "dist")

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "dist" / made.name / "SHA256SUMS").read_text() == (made / "SHA256SUMS").read_text()


def test_the_wheel_has_all_packages_and_no_test(made: Path) -> None:
    with zipfile.ZipFile(made / f"headroom_operator-{VERSION}-py3-none-any.whl") as wheel:
        tops = {name.partition("/")[0] for name in wheel.namelist()}
        metadata = wheel.read(f"headroom_operator-{VERSION}.dist-info/METADATA").decode()
    assert f"\nVersion: {VERSION}\n" in metadata
    assert {"headroom_cli", "endpoint_picker", "inference_operator", "lean_grpc", "local_cluster"} <= tops
    assert not tops & {"tests", "bench", "release", "images"}


def test_the_sdist_has_what_is_needed_to_build_and_test(made: Path) -> None:
    with tarfile.open(made / f"headroom_operator-{VERSION}.tar.gz") as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "Makefile", "requirements.lock", "charts/headroom/Chart.yaml"} <= names
    assert not {name for name in names if "__pycache__" in name or name.startswith(".venv")}


@pytest.fixture(scope="module")
def helm() -> str:
    return str(ensure_helm(lambda line: print(line, file=sys.stderr)))


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_helm_takes_the_chart_package_for_the_chart(made: Path, helm: str) -> None:
    package, folder = str(made / f"headroom-{VERSION}.tgz"), str(ROOT / "charts" / "headroom")

    run(helm, "lint", "--strict", package)
    shown = yaml.safe_load(run(helm, "show", "chart", package))
    assert (shown["version"], shown["appVersion"]) == (VERSION, VERSION)
    assert run(helm, "template", "x", package) == run(helm, "template", "x", folder)
    with tarfile.open(package) as tar:
        assert tar.getnames()[0] == "headroom/Chart.yaml"


def by_name(text: str) -> dict[tuple[str, str], Object]:
    return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text)}


def test_the_bundle_has_what_the_base_has_and_can_be_applied_in_its_order(made: Path) -> None:
    text = (made / f"headroom-{VERSION}.yaml").read_text()

    assert by_name(text) == by_name(run("kubectl", "kustomize", str(BASE)))
    kinds = [each["kind"] for each in yaml.safe_load_all(text)]
    assert kinds.index("CustomResourceDefinition") < kinds.index("Namespace") < kinds.index("ServiceAccount")
    pools = by_name((made / f"gie-crds-{VERSION}.yaml").read_text())
    assert ("CustomResourceDefinition", "inferencepools.inference.networking.k8s.io") in pools


def test_a_registry_is_in_the_bundle_and_the_charts_defaults(tree: Path, helm: str, tmp_path: Path) -> None:
    done = release(tree, tmp_path, "--registry=registry.example.com/team")

    assert done.returncode == 0, done.stderr
    folder = tmp_path / f"headroom-{VERSION}"
    wanted = {f"registry.example.com/team/headroom-{each}:{VERSION}" for each in ("operator", "epp")}
    bundle = by_name((folder / f"headroom-{VERSION}.yaml").read_text())
    assert images(bundle) == wanted
    assert (
        images(by_name(run(helm, "template", "headroom", str(folder / f"headroom-{VERSION}.tgz")))) == wanted
    )


def images(found: dict[tuple[str, str], Object]) -> set[str]:
    (container,) = found["Deployment", "headroom-operator"]["spec"]["template"]["spec"]["containers"]
    variables: dict[str, Any] = {each["name"]: each.get("value") for each in container["env"]}
    return {container["image"], variables["EPP_IMAGE"]}


def test_another_version_than_the_trees_is_refused_with_the_command_that_helps(
    tree: Path, tmp_path: Path
) -> None:
    done = release(tree, tmp_path, version="9.9.9")
    assert done.returncode == 1
    assert "make version VERSION=9.9.9" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("version", ["1.0", "v1.0.0", "1.0.0-rc.1", "latest"])
def test_what_is_no_version_is_refused(tree: Path, tmp_path: Path, version: str) -> None:
    done = release(tree, tmp_path, version=version)
    assert done.returncode == 1
    assert "use three numbers" in done.stderr


def test_a_tree_that_differs_from_its_commit_is_refused_unless_asked_for(tree: Path, tmp_path: Path) -> None:
    extra = tree / "left-over.txt"
    extra.write_text("x")
    try:
        refused = release(tree, tmp_path)
        assert (refused.returncode, "left-over.txt" in refused.stderr) == (1, True)
        built = release(tree, tmp_path, "--dirty")
        assert (built.returncode, "NOT FOR PUBLISHING" in built.stdout) == (0, True)
    finally:
        extra.unlink()


def test_make_version_writes_a_version_that_release_then_takes(tree: Path, tmp_path: Path) -> None:
    copy = tmp_path / "tree"
    git(tree, "clone", "-q", str(tree), str(copy))
    one = copy / "manifests" / "base" / "operator.yaml"
    one.write_text(one.read_text().replace(f"headroom-epp:{VERSION}", "headroom-epp:7.7.7"))
    commit(copy)
    refused = release(copy, tmp_path / "dist", "--dirty")
    assert refused.returncode == 1
    assert "manifests/base/operator.yaml says 7.7.7" in refused.stderr

    run(sys.executable, str(copy / "release" / "versions.py"), "3.2.1")
    changes = copy / "CHANGELOG.md"
    changes.write_text(changes.read_text().replace(f"## {VERSION} ", "## 3.2.1 "))
    git(copy, "add", "-A")
    commit(copy)
    done = release(copy, tmp_path / "dist", version="3.2.1")

    assert done.returncode == 0, done.stderr
    made = tmp_path / "dist" / "headroom-3.2.1"
    bundle = by_name((made / "headroom-3.2.1.yaml").read_text())
    assert images(bundle) == {"headroom-operator:3.2.1", "headroom-epp:3.2.1"}
    assert (made / "headroom_operator-3.2.1-py3-none-any.whl").is_file()
    run(sys.executable, str(copy / "charts" / "generate.py"), "--check")


def test_one_apply_of_the_bundle_installs_and_a_second_changes_nothing(made: Path, tmp_path: Path) -> None:
    bundle = str(made / f"headroom-{VERSION}.yaml")
    with running_control_plane(tmp_path / "plane") as plane:
        kubectl = ("kubectl", f"--kubeconfig={plane.kubeconfig}")
        run(*kubectl, "create", "-f", str(made / f"gie-crds-{VERSION}.yaml"))
        first = run(*kubectl, "apply", "-f", bundle).splitlines()
        again = run(*kubectl, "apply", "-f", bundle).splitlines()

    assert len(first) == len(by_name(Path(bundle).read_text()))
    assert all(line.endswith(" created") for line in first)
    assert all(line.endswith(" unchanged") for line in again)


@pytest.mark.parametrize(
    ("reference", "full"),
    [
        ("headroom-epp:1.0.0", "docker.io/library/headroom-epp:1.0.0"),
        ("team/headroom-epp:1.0.0", "docker.io/team/headroom-epp:1.0.0"),
        ("localhost/headroom-epp:1.0.0", "localhost/headroom-epp:1.0.0"),
        ("registry.example.com/team/headroom-epp:1.0.0", "registry.example.com/team/headroom-epp:1.0.0"),
    ],
)
def test_containerd_finds_an_imported_image_by_the_name_that_pods_use(
    tmp_path: Path, reference: str, full: str
) -> None:
    index = tmp_path / "index.json"
    index.write_text('{"manifests": [{"annotations": {}}]}')
    _name_for_containerd(index, reference)
    assert json.loads(index.read_text())["manifests"][0]["annotations"]["io.containerd.image.name"] == full
