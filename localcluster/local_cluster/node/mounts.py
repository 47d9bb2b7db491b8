"""The plan of a container's root directory: decided here, carried out by container_setup.

Pure: facts about the host's files come through `Host`.
"""

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or directory of the host (`source`) that shows at `target` (absolute) inside."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class RootPlan:
    """`made`: directories to create, parents first; `mounts`: outer ones first, without links in targets."""

    made: tuple[str, ...]
    mounts: tuple[Mount, ...]


class Host(Protocol):
    """The facts about the host's file system that the plan needs."""

    def real_path(self, path: str) -> str:
        """Return `path` with every symbolic link followed, whether it exists or not."""
        ...

    def is_plain(self, path: str) -> bool:
        """Return whether `path` exists and is not a symbolic link."""
        ...


def plan_root(mounts: Sequence[Mount], host: Host) -> RootPlan:
    """Return the plan that shows all `mounts`, whose targets need not exist on the host.

    A directory that lacks the next step towards a mount point is created in the root. When two mounts have
    one target, the later one wins.
    """
    by_target = {_target(mount.target, host): mount for mount in mounts}
    made = {"/"}
    for target in by_target:
        for parent, step in _steps(target):
            inside_another = any(parent == other or parent.startswith(f"{other}/") for other in by_target)
            if not inside_another and not host.is_plain(step):
                made.update(_with_ancestors(parent))
    return RootPlan(
        tuple(sorted(made, key=_depth)),
        tuple(
            Mount(mount.source, target, mount.read_only)
            for target, mount in sorted(by_target.items(), key=lambda item: _depth(item[0]))
        ),
    )


def _target(path: str, host: Host) -> str:
    parent, name = posixpath.split(posixpath.normpath(path))
    return posixpath.join(host.real_path(parent), name)


def _steps(target: str) -> list[tuple[str, str]]:
    """Return (directory, next step) pairs from the root to `target`."""
    chain = _with_ancestors(target)
    return list(pairwise(chain))


def _with_ancestors(path: str) -> list[str]:
    chain = [path]
    while chain[-1] != "/":
        chain.append(posixpath.dirname(chain[-1]))
    return chain[::-1]


def _depth(path: str) -> tuple[int, str]:
    return (0 if path == "/" else path.count("/"), path)
