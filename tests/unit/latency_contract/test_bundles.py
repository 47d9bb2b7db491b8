"""Bundles on disk: whole or not there, refused when a byte is wrong."""

import dataclasses
import errno
from pathlib import Path
from typing import Any

import pytest

from latency_contract import bundles
from latency_contract.base_model import TERMS
from latency_contract.bundles import (
    Bundle,
    load,
    load_newest,
    newest_version,
    publish,
    remove,
    sha256,
    versions,
)
from latency_contract.errors import BundleError, SchemaMismatchError
from latency_contract.manifest import Manifest, TargetModel, from_json, to_json, version_name
from latency_contract.regimes import REGIMES
from latency_contract.schema import SCHEMA_HASH, Target
from latency_contract.states import State

TREES = b"trees" * 100


def bundle(number: int = 1, trees: bytes = TREES, **changes: Any) -> Bundle:
    model = TargetModel(
        file="ttft.ubj",
        sha256=sha256(trees),
        quantiles=(0.5, 0.9),
        bound=1,
        coefficients=(0.0,) * len(TERMS[Target.TTFT]),
        offsets=((0.0,) * REGIMES, (0.25,) * REGIMES),
        degraded=(False,) * REGIMES,
        samples=300,
        stratified_error=0.1,
        recent_error=None,
        coverage=0.9,
    )
    manifest = Manifest(
        version=version_name(1_700_000_000_000 + number, sha256(trees)),
        schema=SCHEMA_HASH.hex(),
        created_s=1.7e9,
        state=State.TRAINED,
        models={Target.TTFT: dataclasses.replace(model, **changes)},
    )
    return Bundle(manifest, {Target.TTFT: trees})


def test_a_published_bundle_is_loaded(tmp_path: Path) -> None:
    sent = bundle()
    publish(tmp_path / "models", sent)
    assert newest_version(tmp_path / "models") == sent.manifest.version
    assert load(tmp_path / "models", sent.manifest.version) == sent
    assert sent.manifest.models[Target.TTFT].median == 0


def test_the_last_few_are_kept_and_one_can_be_taken_back(tmp_path: Path) -> None:
    sent = [bundle(number) for number in range(7)]
    for each in sent:
        publish(tmp_path, each, keep=3)
    names = [each.manifest.version for each in sent]
    assert versions(tmp_path) == names[-3:]
    remove(tmp_path, names[-1])
    assert newest_version(tmp_path) == names[-2]


def test_a_corrupt_bundle_is_passed_over_for_the_one_before_it(tmp_path: Path) -> None:
    good, bad = bundle(1), bundle(2)
    publish(tmp_path, good)
    (publish(tmp_path, bad) / "ttft.ubj").write_bytes(TREES[:-1] + b"X")
    with pytest.raises(BundleError, match="corrupt"):
        load(tmp_path, bad.manifest.version)
    found, errors = load_newest(tmp_path)
    assert found == good
    assert len(errors) == 1
    assert bad.manifest.version in errors[0]


@pytest.mark.parametrize("damage", ["truncated", "missing", "not json", "huge"])
def test_a_damaged_manifest_is_refused(tmp_path: Path, damage: str) -> None:
    directory = publish(tmp_path, bundle())
    manifest = directory / "manifest.json"
    if damage == "missing":
        manifest.unlink()
    else:
        text = {
            "truncated": manifest.read_bytes()[:100],
            "not json": b"[" * 100_000,
            "huge": b" " * (2 << 20),
        }
        manifest.write_bytes(text[damage])
    with pytest.raises(BundleError):
        load(tmp_path, directory.name)
    assert load_newest(tmp_path)[0] is None


def test_another_schema_is_refused_and_the_older_bundle_stays(tmp_path: Path) -> None:
    publish(tmp_path, bundle(1))
    directory = publish(tmp_path, bundle(2))
    manifest = directory / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(SCHEMA_HASH.hex().encode(), b"00" * 8))
    with pytest.raises(SchemaMismatchError, match="must be of one version"):
        load(tmp_path, directory.name)
    found, _ = load_newest(tmp_path)
    assert found == bundle(1)


@pytest.mark.parametrize(
    "changes",
    [
        {"file": "../../etc/passwd"},
        {"quantiles": (0.9, 0.5)},
        {"bound": 2},
        {"coefficients": (1.0,)},
        {"offsets": ((0.0,),)},
        {"coefficients": (float("inf"),) * len(TERMS[Target.TTFT])},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_hostile_manifests_are_refused(changes: Any) -> None:
    with pytest.raises((BundleError, ValueError)):
        from_json(to_json(bundle(**changes).manifest))


def test_a_full_disk_leaves_the_bundle_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, bundle(1))

    def full(path: Path, content: bytes) -> None:
        path.write_bytes(content[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bundles, "_write", full)
    with pytest.raises(OSError, match="No space"):
        publish(tmp_path, bundle(2))
    assert [each.name for each in tmp_path.iterdir()] == [bundle(1).manifest.version]


def test_what_a_killed_publish_left_is_not_seen_and_is_cleared(tmp_path: Path) -> None:
    left = tmp_path / ".unfinished-0"
    left.mkdir()
    (left / "ttft.ubj").write_bytes(TREES)
    assert newest_version(tmp_path) is None
    publish(tmp_path, bundle())
    assert not left.exists()


def test_a_published_version_is_never_written_again(tmp_path: Path) -> None:
    publish(tmp_path, bundle())
    with pytest.raises(BundleError, match="published already"):
        publish(tmp_path, bundle())
    with pytest.raises(BundleError, match="checksum"):
        publish(tmp_path, Bundle(bundle(2).manifest, {Target.TTFT: b"other"}))
