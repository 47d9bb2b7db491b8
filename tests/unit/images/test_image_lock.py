"""An image's lock: the part of requirements.lock that its code needs, no more and no less."""

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from assemble_image import imported_packages
from build_images import TREE
from endpoint_picker.scheduling.producers.token import TOKENIZERS_EXTRA
from image_contents import IMAGES
from image_lock import entries, locks, normalized, optional_roots, part_of, roots_of_extra

LOCK = (TREE / "requirements.lock").read_text()
PROJECT = (TREE / "pyproject.toml").read_text()
SMALL = """\
a==1 \\
    --hash=sha256:aa
    # via
    #   headroom-operator (pyproject.toml)
    #   d
b==2 ; python_full_version < '3.12' \\
    --hash=sha256:b1 \\
    --hash=sha256:b2
    # via a
b==3 ; python_full_version >= '3.12' \\
    --hash=sha256:b3
    # via a
c-e==4 \\
    --hash=sha256:cc
    # via b
d==5 \\
    --hash=sha256:dd
    # via headroom-operator (pyproject.toml)
"""


def test_what_is_required_is_taken_with_markers_and_hashes() -> None:
    wanted = SMALL.partition("d==5")[0].splitlines(keepends=True)
    assert part_of(SMALL, ["A"]) == "".join(line for line in wanted if "#" not in line)
    assert part_of(SMALL, ["c_e"]) == "c-e==4 \\\n    --hash=sha256:cc\n"


def test_what_is_left_out_takes_along_what_only_it_requires() -> None:
    assert pins(part_of(SMALL, ["d"], without=["b"])) == {"a", "d"}


def pins(part: str) -> set[str]:
    return {line.partition("==")[0] for line in part.splitlines() if "==" in line and "--hash" not in line}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a==1\n    # via x\n", "a has no hash"),
        ("a==1 \\\n    --hash=sha256:aa\n", "no `# via` line"),
    ],
)
def test_a_lock_without_hashes_or_notes_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        entries(text)


def test_a_dependency_that_is_not_locked_is_named() -> None:
    with pytest.raises(ValueError, match="has no new-one; make lock"):
        part_of(SMALL, ["a", "new_one"])


def test_extras_of_extras_and_the_base_count() -> None:
    project = {
        "project": {
            "name": "Own",
            "dependencies": ["base>=1"],
            "optional-dependencies": {
                "x": ["own[y, z]", "p[q]>=2"],
                "y": ["r; sys_platform == 'linux'"],
                "z": ["s"],
            },
        }
    }
    assert roots_of_extra(project, "x") == {"base", "p", "r", "s"}


@pytest.mark.parametrize("key", IMAGES)
def test_the_part_is_closed_under_what_is_installed(key: str) -> None:
    image = IMAGES[key]
    held = pins(locks(PROJECT, LOCK, IMAGES)[key])
    needed = roots_of_extra(tomllib.loads(PROJECT), image.extra)
    todo = list(needed)
    while todo:
        for line in distribution(todo.pop()).requires or ():
            requirement = Requirement(line)
            name = normalized(requirement.name)
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if applies and name not in needed | set(image.without):
                needed.add(name)
                todo.append(name)
    # More is for other systems and other Pythons.
    assert needed <= held
    assert held - needed <= {"colorama", "tzdata", "typing-extensions"}


@pytest.mark.parametrize("key", IMAGES)
def test_all_that_an_image_imports_is_in_its_lock(key: str, tmp_path: Path) -> None:
    image = IMAGES[key]
    project = tomllib.loads(PROJECT)
    sources = {
        Path(each).name: TREE / each
        for each in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    }
    for name, folder in sources.items():
        (tmp_path / name).symlink_to(folder)
    root = project["project"]["scripts"][image.command].partition(".")[0]
    own = imported_packages(tmp_path, root)
    held = pins(locks(PROJECT, LOCK, IMAGES)[key])
    optional = optional_roots(project, image)
    unused = set(optional)
    for package in own:
        for module, at_start in set(_imports(sources[package])):
            if module in sources or module in sys.stdlib_module_names:
                continue
            names = {normalized(name) for name in distributions_of().get(module, [module])}
            unused -= names
            may = held if at_start else held | optional
            assert names & may, f"{package} imports {module}, which the image {key} does not have"
    assert not unused, f"the code of the image {key} does not import what is optional for it"


def test_what_is_optional_may_be_imported_inside_functions_alone(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "import a.b\nfrom c import d\ntry:\n    import e\nexcept ImportError:\n    pass\n"
        "class X:\n    import f\n    def g(self):\n        from h import i\n        import a\n"
    )
    assert sorted(_imports(tmp_path)) == [
        ("a", False), ("a", True), ("c", True), ("e", True), ("f", True), ("h", False),
    ]  # fmt: skip


def test_what_is_optional_is_not_in_the_lock_and_is_no_extra_of_the_images_own() -> None:
    project = tomllib.loads(PROJECT)
    parts = locks(PROJECT, LOCK, IMAGES)
    for key, image in IMAGES.items():
        assert not optional_roots(project, image) & pins(parts[key])
    assert IMAGES["epp"].optional == (TOKENIZERS_EXTRA,)
    assert optional_roots(project, IMAGES["epp"]) == {"tokenizers"}


@cache
def distributions_of() -> Mapping[str, list[str]]:
    """Return which distributions bring a module. It looks at every installed file."""
    return packages_distributions()


def _imports(package: Path) -> Iterator[tuple[str, bool]]:
    """Yield (top-level module, whether it is imported with its importer, not inside a function)."""
    for file in package.rglob("*.py"):
        todo: list[tuple[ast.AST, bool]] = [(ast.parse(file.read_bytes()), True)]
        while todo:
            node, at_start = todo.pop()
            if isinstance(node, ast.Import):
                yield from ((alias.name.partition(".")[0], at_start) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                yield node.module.partition(".")[0], at_start
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            todo += [(child, at_start and not inside) for child in ast.iter_child_nodes(node)]
