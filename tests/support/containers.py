"""Containers as strict clusters run them: no root, no capabilities, nothing writable, no passwd entry."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from operator_cluster import eventually

HOST = "127.0.0.1"
_COMPLAINT = re.compile(r"\b(WARNING|ERROR|CRITICAL|Traceback)\b")
_STRICT = ("--read-only", "--read-only-tmpfs=false", "--user=65532:65532")
# A writable root and uid 0, which owns the image's folders, show what the program would write there.
_LENIENT = ("--user=0:0",)
# The limits are below those of any machine: raising one would need a capability that a machine may not have.
_ALWAYS = (
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
    "--passwd=false",
    "--pull=never",
    "--network=host",
    "--ulimit=nofile=1024:4096",
    "--ulimit=nproc=1024:4096",
)


@dataclass(frozen=True, slots=True)
class Engine:
    """podman with a storage of its own, outside of the tree and apart from that of the machine's user."""

    command: tuple[str, ...]
    folder: Path

    @classmethod
    def at(cls, podman: str, folder: Path, *, reads: "Engine | None" = None) -> "Engine":
        """Return podman with its storage in `folder`; it can also run the images of `reads`."""
        options = {"root": "storage", "runroot": "run", "tmpdir": "tmp"}
        # crun refuses a machine with both generations of cgroups; cgroupfs works without systemd.
        places = (f"--{name}={folder / place}" for name, place in options.items())
        other = [f"--storage-opt=overlay.imagestore={reads.folder / 'storage'}"] if reads else []
        return cls((podman, *places, *other, "--runtime=runc", "--cgroup-manager=cgroupfs"), folder)

    def close(self) -> None:
        """End all containers, and undo the mount that podman leaves: its own folder over itself."""
        self.ask("rm", "--all", "--force", "--time=0")
        if (self.folder / "storage/overlay").is_mount():
            subprocess.run(["umount", str(self.folder / "storage/overlay")], check=True)

    def ask(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self.command, *arguments], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"podman {' '.join(arguments)}: {done.stderr}"
        return done.stdout.strip()

    def output(self, image: str, *arguments: str, entrypoint: str = "") -> tuple[int, str]:
        """Run to the end, strictly; return the exit status and all that was printed."""
        options = [f"--entrypoint={entrypoint}"] if entrypoint else []
        done = subprocess.run(
            [*self.command, "run", "--rm", *_ALWAYS, *_STRICT, *options, image, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    @contextlib.contextmanager
    def running(
        self,
        image: str,
        *arguments: str,
        log: Path,
        strict: bool = True,
        mounts: Sequence[tuple[Path, str]] = (),
        environment: Sequence[tuple[str, str]] = (),
    ) -> Iterator["Container"]:
        """Run a container while the block lasts."""
        name = f"headroom-test-{uuid.uuid4().hex[:12]}"
        options = [f"--volume={source}:{target}:ro" for source, target in mounts]
        options += [f"--env={key}={value}" for key, value in environment]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    *(*self.command, "run", "--rm", f"--name={name}", *_ALWAYS),
                    *(*(_STRICT if strict else _LENIENT), *options, image, *arguments),
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            yield Container(self, name, process, log, tuple(target for _, target in mounts))
        finally:
            if process.poll() is None:
                subprocess.run(
                    [*self.command, "rm", "--force", "--time=0", name], capture_output=True, check=False
                )
            process.wait(60)


@dataclass(frozen=True, slots=True)
class Container:
    """A running container; its output goes to a file."""

    engine: Engine
    name: str
    process: "subprocess.Popen[bytes]"
    log: Path
    mounted: tuple[str, ...]

    def until(self, url: str, status: int = 200) -> str:
        """Wait for a GET to be answered with that status; return the body."""
        bodies: list[str] = []

        def answered() -> bool:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            with contextlib.suppress(OSError):
                try:
                    with urllib.request.urlopen(url, timeout=5) as response:
                        bodies.append(response.read().decode())
                        return bool(response.status == status)
                except urllib.error.HTTPError as refusal:
                    return refusal.code == status
            return False

        eventually(answered, url)
        return bodies[-1] if bodies else ""

    def cpu_seconds(self) -> float:
        """Return the CPU time of its first process and of that one's children that have ended."""
        pid = self.engine.ask("inspect", "--format={{.State.Pid}}", self.name)
        fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def written_files(self) -> list[str]:
        """Return the files that it wrote into its root file system, without podman's mount points."""
        changed = [line[2:] for line in self.engine.ask("diff", self.name).splitlines()]
        mounts = ["/etc", *self.mounted]
        return [path for path in changed if not any(Path(mount).is_relative_to(path) for mount in mounts)]

    def stop(self) -> int:
        """Send SIGTERM; return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def complaints(self) -> list[str]:
        """Return the lines of severity WARNING and above."""
        return [line for line in self.log.read_text().splitlines() if _COMPLAINT.search(line)]


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [int(probe.getsockname()[1]) for probe in probes]
