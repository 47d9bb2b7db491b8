"""The part of requirements.lock that one image needs, as text for `pip install --require-hashes`. Pure."""

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from image_contents import Contents

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EXTRAS = re.compile(r"\[([^\]]*)\]")


@dataclass(frozen=True, slots=True)
class Entry:
    """One pinned version. A name has two where Python's version decides between them."""

    name: str
    text: str
    """The pin, its marker and its hashes, as in the lock."""
    via: tuple[str, ...]
    """The names that require it, as the resolver noted them."""


def normalized(name: str) -> str:
    """Return the spelling under which an index and the lock know a distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


def entries(lock: str) -> list[Entry]:
    """Read a lock of `uv pip compile` with hashes and annotations.

    Raises ValueError for an entry without a hash or without the names that require it.
    """
    found: list[Entry] = []
    lines = lock.splitlines()
    starts = [number for number, line in enumerate(lines) if _NAME.match(line)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        pin = [line for line in lines[start:end] if line.strip() and not line.lstrip().startswith("#")]
        notes = " ".join(line.strip(" #") for line in lines[start:end] if line.lstrip().startswith("#"))
        name = normalized(pin[0].partition("==")[0])
        via = tuple(normalized(word) for word in _NAME.findall(notes.replace("(pyproject.toml)", ""))[1:])
        if not any("--hash=sha256:" in line for line in pin) or not via:
            msg = f"requirements.lock: {name} has no hash or no `# via` line; make lock writes both"
            raise ValueError(msg)
        found.append(Entry(name, "\n".join(pin) + "\n", via))
    return found


def part_of(lock: str, roots: Iterable[str], without: Collection[str] = ()) -> str:
    """Return the entries for these distributions and for all that they require, `without` left out.

    Raises ValueError when the lock does not have one of them.
    """
    held = entries(lock)
    wanted = {normalized(name) for name in roots}
    if missing := wanted - {entry.name for entry in held}:
        msg = f"requirements.lock has no {', '.join(sorted(missing))}; make lock adds it"
        raise ValueError(msg)
    while more := {entry.name for entry in held if wanted.intersection(entry.via)} - wanted - set(without):
        wanted |= more
    return "".join(entry.text for entry in held if entry.name in wanted)


def roots_of_extra(project: Mapping[str, Any], extra: str) -> set[str]:
    """Return the names that an extra of pyproject.toml asks for, with the project's own dependencies."""
    table = project["project"]
    own = normalized(table["name"])
    found: set[str] = set()
    todo = [*table["dependencies"], *table["optional-dependencies"][extra]]
    while todo:
        requirement = todo.pop()
        name = _name(requirement)
        if name == own:
            within = _EXTRAS.search(requirement)
            for inner in within[1].split(",") if within else ():
                todo += table["optional-dependencies"][inner.strip()]
        else:
            found.add(name)
    return found


def optional_roots(project: Mapping[str, Any], image: Contents) -> set[str]:
    """Return the names that the image's optional extras ask for beyond its own."""
    held = roots_of_extra(project, image.extra)
    return {name for extra in image.optional for name in roots_of_extra(project, extra)} - held


def locks(pyproject: str, lock: str, images: Mapping[str, Contents]) -> dict[str, str]:
    """Return the lock of each image, and under "build" that of the build backend."""
    project = tomllib.loads(pyproject)
    parts = {
        key: part_of(lock, roots_of_extra(project, image.extra), image.without)
        for key, image in images.items()
    }
    return parts | {"build": part_of(lock, map(_name, project["build-system"]["requires"]))}


def _name(requirement: str) -> str:
    match = _NAME.match(requirement)
    if match is None:
        msg = f"{requirement!r} is no requirement"
        raise ValueError(msg)
    return normalized(match[0])
