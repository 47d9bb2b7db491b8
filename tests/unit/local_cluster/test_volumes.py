"""Files of volumes, and their replacement in one step."""

import base64
from pathlib import Path
from typing import Any

import pytest

from local_cluster.node.environment import MissingReferenceError, PodFacts
from local_cluster.node.volumes import config_map_files, config_map_names, replace_files, volume_files

FACTS = PodFacts("127.64.0.1", "127.0.0.1")
MAP: dict[str, Any] = {
    "data": {"a": "1", "b": "2"},
    "binaryData": {"raw": base64.b64encode(b"\xff\x00").decode()},
}


def test_a_config_map_shows_all_keys_or_the_chosen_ones() -> None:
    assert config_map_files({"name": "m"}, {"m": MAP}.get) == {"a": b"1", "b": b"2", "raw": b"\xff\x00"}
    chosen = {"name": "m", "items": [{"key": "a", "path": "sub/a.txt"}]}
    assert config_map_files(chosen, {"m": MAP}.get) == {"sub/a.txt": b"1"}


@pytest.mark.parametrize("source", [{"name": "gone"}, {"name": "m", "items": [{"key": "gone", "path": "x"}]}])
def test_a_missing_config_map_or_key_is_an_error_unless_optional(source: dict[str, Any]) -> None:
    with pytest.raises(MissingReferenceError, match="gone"):
        config_map_files(source, {"m": MAP}.get)
    assert config_map_files({**source, "optional": True}, {"m": MAP}.get) == {}


def test_a_projected_volume_joins_its_sources() -> None:
    sources = [
        {"serviceAccountToken": {"path": "token"}},
        {"configMap": {"name": "m", "items": [{"key": "a", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "ns", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    pod = {"metadata": {"name": "p", "namespace": "shop"}, "spec": {}}
    volume = {"name": "v", "projected": {"sources": sources}}
    files = volume_files(volume, pod, FACTS, {"m": MAP}.get, lambda _: "secret")
    assert files == {"token": b"secret", "ca.crt": b"1", "ns": b"shop"}


def test_all_config_maps_that_a_pod_mentions_are_known() -> None:
    spec = {
        "volumes": [
            {"name": "v", "configMap": {"name": "one"}},
            {"name": "w", "projected": {"sources": [{"configMap": {"name": "two"}}]}},
        ],
        "containers": [
            {
                "env": [{"name": "E", "valueFrom": {"configMapKeyRef": {"name": "three", "key": "k"}}}],
                "envFrom": [{"configMapRef": {"name": "four"}}],
            }
        ],
    }
    assert config_map_names({"spec": spec}) == {"one", "two", "three", "four"}


def test_a_reader_that_holds_the_old_directory_never_sees_a_mixture(tmp_path: Path) -> None:
    replace_files(tmp_path, {"a": b"old", "b": b"old"})
    before = (tmp_path / "..data").resolve()
    replace_files(tmp_path, {"a": b"new", "c/d": b"new"})
    assert (tmp_path / "..data").resolve() != before
    assert (tmp_path / "a").read_bytes() == b"new"
    assert (tmp_path / "c" / "d").read_bytes() == b"new"
    assert sorted(entry.name for entry in tmp_path.iterdir() if not entry.name.startswith("..")) == ["a", "c"]
    assert not before.exists()


def test_the_same_files_change_nothing(tmp_path: Path) -> None:
    assert replace_files(tmp_path, {"a": b"1"})
    before = (tmp_path / "..data").readlink()
    assert not replace_files(tmp_path, {"a": b"1"})
    assert (tmp_path / "..data").readlink() == before


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x"])
def test_no_path_leads_out_of_the_volume(tmp_path: Path, name: str) -> None:
    with pytest.raises(MissingReferenceError, match="out of its volume"):
        replace_files(tmp_path / "v", {name: b""})
    assert not (tmp_path / "x").exists()
