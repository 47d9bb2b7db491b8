"""Run one container: lay out its files, start container_setup, follow it, end it."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import psutil

from local_cluster.errors import NamespacesRefusedError
from local_cluster.node.mounts import Mount, plan_root
from local_cluster.state import MARK

_SETUP: Final = Path(__file__).with_name("container_setup.py")


class HostTree:
    """The host's file system, as mounts.Host asks for it."""

    def real_path(self, path: str) -> str:
        """Return `path` with every symbolic link followed."""
        return os.path.realpath(path)

    def is_plain(self, path: str) -> bool:
        """Return whether `path` exists and is no link."""
        return os.path.lexists(path) and not Path(path).is_symlink()


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything that a container needs to start. `directory` is its own; `log` is appended to."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    mounts: Sequence[Mount]
    host_name: str
    working_directory: str
    directory: Path
    log: Path


def own_mark() -> dict[str, str]:
    """Return the variable MARK, which names a process's cluster, if this process has it."""
    return {MARK: os.environ[MARK]} if MARK in os.environ else {}


class Process:
    """A container that has been started."""

    def __init__(self, process: asyncio.subprocess.Process, launch: Launch) -> None:
        self._process = process
        self._launch = launch

    @property
    def setup_pid(self) -> int:
        """The process that set the container up and ends with it."""
        return self._process.pid

    async def wait(self) -> tuple[int, str]:
        """Wait for its end; return the exit code and, if the program could not be started, why."""
        code = await self._process.wait()
        if code < 0:  # the setup process itself was killed, and the container with it
            code = 128 - code
        problem = ""
        with contextlib.suppress(OSError):
            problem = (self._launch.directory / "error").read_text()
        return code, problem

    def terminate(self) -> None:
        """Send SIGTERM; the set-up process forwards it to the program."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End every process of the container at once.

        The kill hits the program, not its set-up process: the set-up process then ends after the container's
        last process, so that `wait` returns when all have ended.
        """
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            inside = psutil.Process(self._process.pid).children()
            for child in inside:
                child.kill()
            if not inside:  # the program has not been started yet
                self._process.kill()


async def start(launch: Launch) -> Process:
    """Start a container; return when its program runs, or could not be started (`wait` returns why).

    Raises:
        OSError: its files could not be written or no process could be made.
    """
    reader, started = os.pipe()
    try:
        plan_file = _write_plan(launch, started)
        with launch.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(_SETUP), str(plan_file), str(os.getpid())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=own_mark(),
                pass_fds=(started,),
            )
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(started)
    running = Process(process, launch)
    try:
        await _closed(reader)
    except BaseException:
        running.kill()
        await process.wait()
        raise
    finally:
        os.close(reader)
    return running


async def _closed(pipe: int) -> None:
    """Wait until the other end of a pipe is closed everywhere."""
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()
    loop.add_reader(pipe, closed.set)
    try:
        await closed.wait()
    finally:
        loop.remove_reader(pipe)


def _write_plan(launch: Launch, started: int) -> Path:
    root = launch.directory / "root"
    root.mkdir(parents=True, exist_ok=True)
    launch.log.parent.mkdir(parents=True, exist_ok=True)
    (launch.directory / "error").unlink(missing_ok=True)
    plan = plan_root(launch.mounts, HostTree())
    plan_file = launch.directory / "plan.json"
    plan_file.touch(mode=0o600)
    content = {
        "root": str(root),
        "made": plan.made,
        "mounts": [asdict(mount) for mount in plan.mounts],
        "argv": list(launch.argv),
        "environment": {**launch.environment, **own_mark()},
        "directory": launch.working_directory,
        "host_name": launch.host_name[:63],
        "error_file": str(launch.directory / "error"),
        "started": started,
    }
    plan_file.write_text(json.dumps(content))
    return plan_file


async def check_namespaces(directory: Path) -> None:
    """Run `true` in a container of its own.

    Raises:
        NamespacesRefusedError: this machine does not allow it; the text says what to change.
    """
    trial = Launch(
        ("true",),
        {"PATH": os.environ.get("PATH", os.defpath)},
        (),
        "trial",
        "/",
        directory,
        directory / "log",
    )
    code, problem = await (await start(trial)).wait()
    if code:
        message = (
            f"this machine refuses user and mount namespaces ({problem or f'exit code {code}'}); the local "
            "node needs them: run as root, or allow them (sysctl kernel.unprivileged_userns_clone=1, "
            "user.max_user_namespaces > 0, kernel.apparmor_restrict_unprivileged_userns=0)"
        )
        raise NamespacesRefusedError(message)
