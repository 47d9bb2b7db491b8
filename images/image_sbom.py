"""A software bill of materials (CycloneDX 1.6, JSON) from what is installed in an image's layers."""

import json
import platform
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def write_sbom(target: Path, image: str, layers: Sequence[Path], packages: Path) -> None:
    """Write the bill of the image that these layers make; `packages` is where each has Python's packages.

    Equal layers give equal bytes: there is no time and no serial number in it.
    """
    found = sorted(
        (each for layer in layers for each in distributions(path=[str(layer / packages)])),
        key=lambda each: _normalized(each.name),
    )
    references = {_normalized(each.name): _purl(each) for each in found}
    # A package may have files in two layers.
    system = {
        part["purl"]: part for layer in layers for part in _system_packages(layer / "var/lib/dpkg/status.d")
    }
    python = {
        "type": "platform",
        "bom-ref": f"pkg:generic/python@{platform.python_version()}",
        "name": "python",
        "version": platform.python_version(),
        "purl": f"pkg:generic/python@{platform.python_version()}",
    }
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "container", "bom-ref": image, "name": image, "version": _own(found)}
        },
        "components": [*map(_component, found), python, *system.values()],
        "dependencies": [
            {"ref": references[_normalized(each.name)], "dependsOn": sorted(_requires(each, references))}
            for each in found
        ],
    }
    target.write_text(json.dumps(bill, indent=1, ensure_ascii=False) + "\n")


def _own(found: Iterable[Distribution]) -> str:
    return next((each.version for each in found if each.name == "headroom-operator"), "")


def _component(each: Distribution) -> dict[str, Any]:
    part: dict[str, Any] = {
        "type": "library",
        "bom-ref": _purl(each),
        "name": each.name,
        "version": each.version,
        "purl": _purl(each),
    }
    fields = each.metadata
    if "License-Expression" in fields:
        part["licenses"] = [{"expression": fields["License-Expression"]}]
    # Some distributions have the whole text of a licence in this field.
    elif "License" in fields and "\n" not in fields["License"]:
        part["licenses"] = [{"license": {"name": fields["License"]}}]
    return part


def _requires(each: Distribution, references: dict[str, str]) -> set[str]:
    names = {
        _normalized(match[0])
        for line in each.requires or ()
        if "extra ==" not in line and (match := _NAME.match(line))
    }
    return {references[name] for name in names if name in references}


def _system_packages(folder: Path) -> list[dict[str, Any]]:
    parts = []
    for record in sorted(folder.glob("*")):
        fields = dict(
            line.split(": ", 1)
            for line in record.read_text().splitlines()
            if re.match(r"[A-Z][\w-]*: ", line)
        )
        purl = f"pkg:deb/debian/{fields['Package']}@{fields['Version']}?arch={fields['Architecture']}"
        part = {"type": "library", "bom-ref": purl, "name": fields["Package"], "version": fields["Version"]}
        parts.append(part | {"purl": purl})
    return parts


def _purl(each: Distribution) -> str:
    return f"pkg:pypi/{_normalized(each.name)}@{each.version}"


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
