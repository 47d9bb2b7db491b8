"""Bundles on disk: published by one rename, loaded only when every checksum is right, kept to the last few.

The only module of the contract that touches files. Readers poll `newest_version`, one listing of a directory.
"""

import contextlib
import hashlib
import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from latency_contract.errors import BundleError, ContractError
from latency_contract.manifest import MANIFEST, MAX_MANIFEST_BYTES, Manifest, from_json, is_version, to_json
from latency_contract.schema import Target

#: Largest model file that is read.
MAX_MODEL_BYTES: Final = 64 << 20
#: Bundles that `publish` leaves.
KEPT: Final = 5

_UNFINISHED: Final = ".unfinished-"


@dataclass(frozen=True, slots=True)
class Bundle:
    """A verified bundle."""

    manifest: Manifest
    trees: Mapping[Target, bytes]
    """UBJ bytes of each target's model; load with `Booster(model_file=bytearray(...))`."""


def sha256(content: bytes) -> str:
    """Return the hex digest that a manifest has of a file."""
    return hashlib.sha256(content).hexdigest()


def publish(models: Path, bundle: Bundle, *, keep: int = KEPT) -> Path:
    """Write `models/<version>/` and return it; readers see the whole bundle or nothing of it.

    Files are flushed to disk before the rename. Older bundles than the `keep` newest are deleted, and what a
    publish that was interrupted left. Raises BundleError when the version is there already or a checksum in
    the manifest is not that of its trees, and OSError when the disk is full or not writable: nothing is then
    visible, and what was written is deleted.
    """
    manifest = bundle.manifest
    directory = models / manifest.version
    for target, model in manifest.models.items():
        if sha256(bundle.trees[target]) != model.sha256:
            msg = (
                f"the checksum of {model.file} in the manifest of {manifest.version} is not that of its trees"
            )
            raise BundleError(msg)
    if directory.exists():
        msg = f"version {manifest.version} is published already"
        raise BundleError(msg)
    models.mkdir(parents=True, exist_ok=True)
    _clear(models)
    unfinished = models / f"{_UNFINISHED}{uuid.uuid4().hex}"
    try:
        unfinished.mkdir()
        for target, model in manifest.models.items():
            _write(unfinished / model.file, bundle.trees[target])
        _write(unfinished / MANIFEST, to_json(manifest))
        _flush_directory(unfinished)
        unfinished.rename(directory)
    except OSError:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    _flush_directory(models)
    for old in versions(models)[:-keep]:
        shutil.rmtree(models / old, ignore_errors=True)
    return directory


def versions(models: Path) -> list[str]:
    """Return the versions of a directory, oldest first; [] when it does not exist."""
    try:
        return sorted(each.name for each in models.iterdir() if is_version(each.name))
    except FileNotFoundError:
        return []


def newest_version(models: Path) -> str | None:
    """Return the newest version's name; None without one. It is not verified."""
    names = versions(models)
    return names[-1] if names else None


def load(models: Path, version: str) -> Bundle:
    """Return a bundle after checking schema, sizes and checksums.

    Raises SchemaMismatchError for another schema, and BundleError for anything else that is wrong; also when
    the bundle was deleted meanwhile.
    """
    if not is_version(version):
        msg = f"{version[:60]!r} is no version of a bundle"
        raise BundleError(msg)
    directory = models / version
    manifest = from_json(_read(directory / MANIFEST, MAX_MANIFEST_BYTES))
    if manifest.version != version:
        msg = f"the manifest in {version} is that of {manifest.version}"
        raise BundleError(msg)
    trees = {}
    for target, model in manifest.models.items():
        content = _read(directory / model.file, MAX_MODEL_BYTES)
        if sha256(content) != model.sha256:
            msg = f"{version}/{model.file} is corrupt: its checksum is not the manifest's"
            raise BundleError(msg)
        trees[target] = content
    return Bundle(manifest, trees)


def load_newest(models: Path) -> tuple[Bundle | None, list[str]]:
    """Return the newest bundle that can be used, and why each newer one cannot; None when there is none."""
    errors: list[str] = []
    for version in reversed(versions(models)):
        try:
            return load(models, version), errors
        except ContractError as error:
            errors.append(f"{version}: {error}")
    return None, errors


def remove(models: Path, version: str) -> None:
    """Delete a bundle, so that the one before it is the newest: this is how a trainer rolls back."""
    if is_version(version):
        shutil.rmtree(models / version, ignore_errors=True)


def _clear(models: Path) -> None:
    for each in models.iterdir():
        if each.name.startswith(_UNFINISHED):
            shutil.rmtree(each, ignore_errors=True)


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        msg = f"{path.parent.name}/{path.name} cannot be read: {error.strerror}"
        raise BundleError(msg) from error
    if len(content) > limit:
        msg = f"{path.parent.name}/{path.name} has more than {limit} bytes"
        raise BundleError(msg)
    return content


def _flush_directory(path: Path) -> None:
    with contextlib.suppress(OSError):  # not every file system can
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
