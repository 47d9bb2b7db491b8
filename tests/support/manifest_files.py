"""The committed manifests, as objects."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"
BASE = MANIFESTS / "base"
GIE_CRDS = MANIFESTS / "gie-crds"
DEMO = MANIFESTS / "overlays" / "demo"
QUICKSTART = MANIFESTS / "examples" / "quickstart"


def objects(*paths: Path) -> list[dict[str, Any]]:
    """Return the objects of YAML files, in order."""
    return [found for path in paths for found in yaml.safe_load_all(path.read_text("utf-8")) if found]


def kustomized(folder: Path) -> list[dict[str, Any]]:
    """Return the objects of a folder's kustomization.yaml, which lists files and folders only."""
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))["resources"]
    paths = [(folder / name).resolve() for name in listed]
    return [found for path in paths for found in (kustomized(path) if path.is_dir() else objects(path))]


def one(found: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """Return the object of that kind and name."""
    (match,) = (item for item in found if (item["kind"], item["metadata"]["name"]) == (kind, name))
    return match
