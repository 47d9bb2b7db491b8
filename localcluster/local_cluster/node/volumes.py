"""The files of volumes: what they hold (pure), and how a directory of them is replaced in one step.

A reader inside a container sees either all old or all new files: like a kubelet, each generation is a
directory of its own, `..data` is a link to it that is renamed into place, and every file is a link into
`..data`.
"""

import base64
import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

from local_cluster.node.environment import ConfigMaps, MissingReferenceError, PodFacts, field_value
from local_cluster.node.objects import Json

#: Path inside the volume -> content.
Files: TypeAlias = dict[str, bytes]
#: Given a serviceAccountToken projection, the token.
Tokens = Callable[[Json], str]

_DATA: Final = "..data"


def token_projections(pod: Json) -> list[Json]:
    """Return every serviceAccountToken projection of the pod's volumes."""
    return [
        source["serviceAccountToken"]
        for volume in pod["spec"].get("volumes") or ()
        for source in (volume.get("projected") or {}).get("sources") or ()
        if "serviceAccountToken" in source
    ]


def config_map_names(pod: Json) -> set[str]:
    """Return the names of all ConfigMaps that the pod's volumes and environments mention."""
    names: set[str] = set()
    for volume in pod["spec"].get("volumes") or ():
        sources = [volume, *((volume.get("projected") or {}).get("sources") or ())]
        names.update(source["configMap"].get("name", "") for source in sources if "configMap" in source)
    for container in pod["spec"]["containers"]:
        for entry in (*(container.get("env") or ()), *(container.get("envFrom") or ())):
            reference = (entry.get("valueFrom") or {}).get("configMapKeyRef") or entry.get("configMapRef")
            names.update([reference.get("name", "")] if reference else [])
    return names


def volume_files(
    volume: Json, pod: Json, facts: PodFacts, config_maps: ConfigMaps, tokens: Tokens
) -> Files | None:
    """Return what a volume holds; None for an emptyDir, whose content is the container's own.

    Raises:
        MissingReferenceError: a ConfigMap or a key that is not optional is missing.
    """
    if "emptyDir" in volume:
        return None
    sources = volume["projected"].get("sources") or () if "projected" in volume else (volume,)
    files: Files = {}
    for source in sources:
        if "configMap" in source:
            files |= config_map_files(source["configMap"], config_maps)
        elif "downwardAPI" in source:
            files |= _downward_files(source["downwardAPI"], pod, facts)
        elif "serviceAccountToken" in source:
            projection = source["serviceAccountToken"]
            files[projection["path"]] = tokens(projection).encode()
    return files


def config_map_files(source: Json, config_maps: ConfigMaps) -> Files:
    """Return the files of a ConfigMap source: every key, or those of `items` at their paths."""
    optional = bool(source.get("optional"))
    config_map = config_maps(source.get("name", ""))
    if config_map is None:
        if optional:
            return {}
        raise MissingReferenceError(f'configmap "{source.get("name")}" not found')
    content = {key: value.encode() for key, value in (config_map.get("data") or {}).items()}
    content |= {key: base64.b64decode(value) for key, value in (config_map.get("binaryData") or {}).items()}
    if not source.get("items"):
        return content
    files: Files = {}
    for item in source["items"]:
        if item["key"] in content:
            files[item["path"]] = content[item["key"]]
        elif not optional:
            raise MissingReferenceError(f'configmap "{source.get("name")}" has no key "{item["key"]}"')
    return files


def _downward_files(source: Json, pod: Json, facts: PodFacts) -> Files:
    files: Files = {}
    for item in source.get("items") or ():
        if "fieldRef" not in item:
            raise MissingReferenceError("this node does not support resourceFieldRef")
        files[item["path"]] = field_value(item["fieldRef"]["fieldPath"], pod, facts).encode()
    return files


def replace_files(directory: Path, files: Mapping[str, bytes]) -> bool:
    """Make `directory` show exactly `files`, in one step; return whether anything changed."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    data = directory / _DATA
    if data.exists() and _read(data) == dict(files):
        return False
    old = data.readlink() if data.is_symlink() else None
    generation = Path(tempfile.mkdtemp(dir=directory, prefix="..generation-"))
    generation.chmod(0o755)
    for name, content in files.items():
        path = generation / _checked(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    swap = directory / "..data-new"
    swap.unlink(missing_ok=True)
    swap.symlink_to(generation.name)
    swap.rename(data)
    _show(directory, {PurePosixPath(name).parts[0] for name in files})
    if old is not None:
        shutil.rmtree(directory / old, ignore_errors=True)
    return True


def _checked(name: str) -> PurePosixPath:
    """Return a path that stays inside the volume (the API server checks it too)."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise MissingReferenceError(f'the path "{name}" leads out of its volume')
    return path


def _show(directory: Path, names: set[str]) -> None:
    present = {entry.name for entry in os.scandir(directory) if not entry.name.startswith("..")}
    for name in names - present:
        (directory / name).symlink_to(f"{_DATA}/{name}")
    for name in present - names:
        with contextlib.suppress(FileNotFoundError):
            (directory / name).unlink()


def _read(directory: Path) -> Files:
    root = directory.resolve()
    return {
        path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }
