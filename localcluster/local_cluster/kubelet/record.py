"""What a cluster's directory says of its kubelet node: whatever has to be found, or undone, from outside."""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

NODE_NAME: Final = "local"
NODE_FOLDER: Final = "node"
#: Below the cluster's directory: JSON, how often each part was started and how it last ended.
PARTS_FILE: Final = f"{NODE_FOLDER}/parts.json"


@dataclass(frozen=True, slots=True)
class Record:
    """A node's network, by number, and the parent of its pods' cgroups, such as /headroom-3-4711."""

    network: int
    cgroup: str

    @classmethod
    def read(cls, file: Path) -> "Record":
        """Read what `write` wrote. Raises OSError or ValueError."""
        return cls(**json.loads(file.read_text()))

    def write(self, file: Path) -> None:
        """Write it; readers see nothing or all."""
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self)))
        fresh.rename(file)


def record_file(directory: Path) -> Path:
    """Return the record's place below a cluster's directory."""
    return directory / NODE_FOLDER / "node.json"


def read_record(directory: Path) -> Record | None:
    """Return the record in a cluster's directory, None when there is none."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return Record.read(record_file(directory))
    return None


def is_kubelet(directory: Path) -> bool:
    """Return whether the cluster in a directory has a kubelet node."""
    return record_file(directory).exists()


@dataclass(frozen=True, slots=True)
class PartState:
    """How one program of the node fares."""

    name: str
    starts: int
    last_end: str
    """How it last ended, "" when it has not."""
    runs: bool


def write_parts(file: Path, parts: Iterable[PartState]) -> None:
    """Write the states of all parts; readers see the old file or the whole new one."""
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps([asdict(each) for each in parts], indent=1))
    fresh.rename(file)


def parts_of(directory: Path) -> list[PartState]:
    """Return the states of the parts of a cluster's kubelet node; empty when it has none."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return [PartState(**each) for each in json.loads((directory / PARTS_FILE).read_text())]
    return []
