"""What a cluster can leave on a machine: processes, namespaces, cgroups, mounts, network, kernel settings."""

import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from local_cluster.cluster import LocalCluster

#: Where other programs of this machine mount and unmount meanwhile.
_OTHERS = re.compile(r"/storage/overlay|/buildah|/netns/podman")
_NAMESPACES = ("net", "mnt", "pid", "ipc", "uts", "cgroup")
_SETTINGS = ("vm", "kernel", "net", "fs")
#: Figures that the kernel counts, below /proc/sys.
_COUNTERS = ("/kernel/random/", "/fs/quota/")
_LARGEST = 4096


@dataclass(frozen=True, slots=True)
class Machine:
    """A look at the machine as a whole; equal looks before and after a cluster mean that nothing is left."""

    cgroups: frozenset[str]
    mounts: frozenset[str]
    interfaces: frozenset[str]
    routes: str
    settings: dict[str, str]
    folders: frozenset[str]

    @classmethod
    def look(cls) -> "Machine":
        groups = Path("/sys/fs/cgroup").glob("*/headroom*")
        mounts = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
        places = (Path("/var/lib"), Path("/var/log"), Path("/run"), Path("/opt"), Path("/etc"))
        return cls(
            cgroups=frozenset(map(str, groups)),
            mounts=frozenset(mount for mount in mounts if not _OTHERS.search(mount)),
            interfaces=frozenset(each.name for each in Path("/sys/class/net").iterdir()),
            routes=Path("/proc/net/route").read_text(),
            settings=_steady_settings(),
            folders=frozenset(str(each) for place in places for each in place.iterdir()),
        )

    def left_behind(self, before: "Machine") -> list[str]:
        """Return what is there now and was not before, and every setting that differs."""
        found = [
            *sorted(self.cgroups - before.cgroups),
            *sorted(self.mounts - before.mounts),
            *sorted(self.interfaces - before.interfaces),
            *sorted(self.folders - before.folders),
        ]
        if self.routes != before.routes:
            found.append(f"routes: {self.routes}")
        common = self.settings.keys() & before.settings.keys()
        found += [
            f"{name}: {before.settings[name]!r} -> {self.settings[name]!r}"
            for name in sorted(common)
            if self.settings[name] != before.settings[name]
        ]
        return found


@dataclass(slots=True)
class Traces:
    """The processes and namespaces that a cluster had while it ran."""

    processes: set[tuple[int, str]] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)

    def note(self, cluster: LocalCluster) -> None:
        """Add what the cluster has now; the namespaces of this process do not count."""
        own = _namespaces(Path("/proc/self"))
        for pid in cluster.processes():
            self.processes.add((pid, _begun(pid)))
            self.namespaces |= _namespaces(Path("/proc", str(pid))) - own

    def left(self) -> list[str]:
        """Return those that are there still."""
        alive = [f"process {pid}" for pid, begun in self.processes if begun and _begun(pid) == begun]
        held = {each for folder in Path("/proc").glob("[0-9]*") for each in _namespaces(folder)}
        return [*alive, *sorted(self.namespaces & held)]


def _begun(pid: int) -> str:
    """Return the time at which a process began, in clock ticks; "" when it has ended."""
    try:
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _namespaces(process: Path) -> set[str]:
    found = set()
    for kind in _NAMESPACES:
        try:
            found.add(str((process / "ns" / kind).readlink()))
        except OSError:
            continue
    return found


def _steady_settings() -> dict[str, str]:
    """Return the kernel's settings, without those that change by themselves."""
    first = _settings()
    time.sleep(1)  # a moment in which counters move
    return {name: value for name, value in _settings().items() if first.get(name) == value}


def _settings() -> dict[str, str]:
    found = {}
    for part in _SETTINGS:
        for path in Path("/proc/sys", part).rglob("*"):
            if any(each in str(path) for each in _COUNTERS) or not path.is_file():
                continue
            try:
                found[str(path)] = path.read_text()[:_LARGEST]
            except (OSError, UnicodeDecodeError):
                continue
    return found
