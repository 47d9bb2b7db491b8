"""The version of a release in every file that names it: checked by `make release`, written by `make version`.

python release/versions.py            exit 1 and name the places that differ from pyproject.toml
python release/versions.py 0.2.0      write this version everywhere
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TREE: Final = Path(__file__).resolve().parent.parent
#: Semantic versions that are versions of Python packages, too, as those of pre-releases are not.
VERSION: Final = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")

_IMAGE: Final = r"\bheadroom-(?:operator|epp|predictor|batch|model-server-sim):(\d+\.\d+\.\d+)"
_YAML: Final = (_IMAGE, r"\bnewTag: (\d+\.\d+\.\d+)")
#: Files by glob, and the patterns of places in them: the group is the version.
PLACES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("pyproject.toml", (r'(?m)^version = "([^"]+)"',)),
    ("manifests/**/*.yaml", _YAML),
    ("manifests/**/*.md", (_IMAGE,)),
    ("docs/*.md", (_IMAGE,)),
    ("*.md", (_IMAGE,)),
    ("simulator/model_server_sim/server.py", (r'(?m)^VERSION = "(\d+\.\d+\.\d+)\+sim"',)),
    ("*/README.md", (_IMAGE,)),
    ("charts/headroom/Chart.yaml", (r"(?m)^version: (\S+)", r'(?m)^appVersion: "([^"]+)"')),
    (
        "tests/component/manifests/golden/*.objects.yaml",
        (_IMAGE, r"app\.kubernetes\.io/version: (\d\S*)", r"helm\.sh/chart: headroom-(\d\S*)"),
    ),
)


def tree_version(tree: Path = TREE) -> str:
    """Return the version in pyproject.toml."""
    return str(tomllib.loads((tree / "pyproject.toml").read_text("utf-8"))["project"]["version"])


def found(tree: Path = TREE) -> Iterator[tuple[Path, str]]:
    """Yield every place that names a version of Headroom: the file, and the version."""
    for path, patterns in _files(tree):
        text = path.read_text("utf-8")
        for pattern in patterns:
            for match in re.finditer(pattern, text):
                yield path, match[1]


def differing(version: str, tree: Path = TREE) -> list[str]:
    """Return a line for each place that names another version."""
    return [f"{path.relative_to(tree)} says {other}" for path, other in found(tree) if other != version]


def write(version: str, tree: Path = TREE) -> list[Path]:
    """Write this version everywhere; return the files that changed."""
    changed = []
    for path, patterns in _files(tree):
        before = text = path.read_text("utf-8")
        for pattern in patterns:
            text = re.sub(pattern, lambda match: _with(match, version), text)
        if text != before:
            path.write_text(text, "utf-8")
            changed.append(path)
    return changed


def _with(match: re.Match[str], version: str) -> str:
    start, end = (at - match.start() for at in match.span(1))
    return match[0][:start] + version + match[0][end:]


def _files(tree: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    for glob, patterns in PLACES:
        for path in sorted(tree.glob(glob)):
            yield path, patterns


def main(arguments: list[str] | None = None) -> int:
    """Check or write; exit status 0, 1 when places differ, 2 for a version that cannot be one."""
    parser = argparse.ArgumentParser(prog="make version", description=__doc__.partition("\n")[0])
    parser.add_argument("version", nargs="?", default="", help="the version to write; without it, check only")
    version = parser.parse_args(arguments).version
    if not version:
        wrong = differing(tree_version())
        print("\n".join(wrong), file=sys.stderr)
        return 1 if wrong else 0
    if not VERSION.fullmatch(version):
        print(f"make version: {version!r} is no version: use three numbers, such as 0.2.0", file=sys.stderr)
        return 2
    for path in write(version):
        print(path.relative_to(TREE))
    print(
        f"Next: name {version} in CHANGELOG.md, `make setup check`, commit, `make release VERSION={version}`."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
