"""The wheel in fresh environments: its commands run with their extra; without it they name the missing one.

Installs from the package index that pip is configured with. `make test-release`; about three
minutes, most of them pip's.
"""

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from build_release import Release, build_python
from manifest_files import ROOT
from versions import tree_version

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

#: Each command with its extra.
COMMANDS = {
    "headroom": "local",
    "headroom-operator": "operator",
    "headroom-epp": "epp",
    "headroom-model-server-sim": "simulator",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build_python(Release(version=tree_version(ROOT), epoch=1790000000), folder)
    (built,) = folder.glob("*.whl")
    return built


def environment(folder: Path, wheel: Path, extras: str = "") -> Path:
    """Return the folder of the commands of a new environment with the wheel."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    command = [
        str(folder / "bin" / "pip"),
        "install",
        "--quiet",
        "--disable-pip-version-check",
        f"{wheel}{extras}",
    ]
    subprocess.run(command, check=True)
    return folder / "bin"


@pytest.fixture(scope="module")
def whole(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("whole") / "env", wheel, "[local]")


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd="/")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_the_wheels_version(whole: Path, wheel: Path, command: str) -> None:
    helped, version = run(str(whole / command), "--help"), run(str(whole / command), "--version")

    assert (helped.returncode, helped.stdout.startswith("usage: ")) == (0, True), helped.stderr
    assert version.stdout.strip() == wheel.name.split("-")[1]


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("bare") / "env", wheel)


@pytest.mark.parametrize(("command", "extra"), COMMANDS.items())
def test_a_command_without_its_extra_names_it(bare: Path, command: str, extra: str) -> None:
    done = run(str(bare / command), "--help")

    assert done.returncode == 1
    assert f"pip install 'headroom-operator[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def picker_metrics(wheel: Path, tmp_path: Path) -> Iterator[str]:
    """The URL of a picker of the extra `epp` alone, which reads its endpoints from a file."""
    commands = environment(tmp_path / "env", wheel, "[epp]")
    endpoints = tmp_path / "endpoints.yaml"
    endpoints.write_text("endpoints:\n- {name: one, address: 127.0.0.1, port: 1}\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ("--bind-address=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", f"--metrics-port={port}")
    process = subprocess.Popen([str(commands / "headroom-epp"), f"--endpoints-file={endpoints}", *flags])
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    assert process.wait(timeout=60) == 0


def test_the_picker_runs_with_a_file_of_endpoints(picker_metrics: str) -> None:
    deadline = time.monotonic() + 60
    page = ""
    while '"one"' not in page:
        assert time.monotonic() < deadline, page
        try:
            with urllib.request.urlopen(picker_metrics + "/debug/state", timeout=5) as answer:
                page = answer.read().decode()
        except OSError:
            time.sleep(0.1)
