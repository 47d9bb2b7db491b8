"""Become a container: `python -I -S container_setup.py PLAN.json PARENT_PID`.

Runs as a script of its own and must not import anything of this package. The process makes a user, mount, PID
and UTS namespace (no privilege needed: it maps its own user to root inside), builds a root directory and runs
the program in it. Then it waits, to forward SIGTERM and to report the exit code (128 + signal when killed).

The root is a tmpfs that holds, as bind mounts, everything the host's root holds. Where a mount point does not
exist on the host, the directories that lack it are made in the tmpfs too and filled the same way: nothing
is ever created on the host, and the same code serves root and other users (an overlay would not work on
every file system without root).

Lifelines: the kernel kills this process with its parent, the program with this process, and the program's
own children with the program, because it is the first process of a PID namespace.
"""

# ruff: noqa: PTH102, PTH103, PTH110, PTH112, PTH115, PTH118, PTH120, PTH123, PTH211
# (pathlib would double the start-up time of every container)

import ctypes
import errno
import json
import os
import select
import signal
import sys
from collections.abc import Iterable
from typing import Any

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_UNBINDABLE, MS_PRIVATE = 4096, 16384, 1 << 17, 1 << 18
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x4000000, 0x10000000, 0x20000000
PR_SET_PDEATHSIG = 1
#: Flags of a mount that a less privileged namespace may not take away when it remounts.
LOCKED = {os.ST_NOSUID: MS_NOSUID, os.ST_NODEV: MS_NODEV, os.ST_NOEXEC: MS_NOEXEC}
CANNOT_RUN = 128

Plan = dict[str, Any]
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def mount(
    source: str, target: str, kind: str | None = None, flags: int = 0, options: str | None = None
) -> None:
    """Call mount(2)."""
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    result = _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _checked(result, f"mount {target}")


def die_with(parent: int) -> None:
    """Ask the kernel for SIGKILL when `parent` ends. A change of credentials clears that."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the parent is gone")


def enter_namespaces(host_name: str) -> None:
    """Enter new user, mount, PID (for children) and UTS namespaces."""
    user, group = os.getuid(), os.getgid()
    flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS
    _checked(_libc.unshare(flags), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    _checked(_libc.sethostname(host_name.encode(), len(host_name.encode())), "sethostname")


def build_root(root: str, made: Iterable[str], replaced: Iterable[str]) -> None:
    """Fill a tmpfs at `root`: create the directories `made`, parents first, and bind the host's entries."""
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=16m")
    mount("none", root, None, MS_UNBINDABLE)  # else binding a parent of `root` would copy its mounts too
    left_out = {*made, *replaced, "/proc"}
    for directory in made:
        inside = root + directory
        os.makedirs(inside, exist_ok=True)
        try:
            entries = list(os.scandir(directory))
        except FileNotFoundError:
            continue
        for entry in entries:
            if entry.path not in left_out:
                mirror(entry, os.path.join(inside, entry.name))
    os.makedirs(f"{root}/proc", exist_ok=True)


def mirror(entry: os.DirEntry[str], inside: str) -> None:
    """Bind one entry of the host at `inside`; copy it if it is a link."""
    if entry.is_symlink():
        os.symlink(os.readlink(entry.path), inside)
        return
    if entry.is_dir():
        os.mkdir(inside)
    else:
        make_file(inside)
    try:
        mount(entry.path, inside, None, MS_BIND | MS_REC)
    except OSError as error:  # the container may well run without an entry that cannot be bound
        sys.stderr.write(f"not shown inside: {error}\n")


def make_file(path: str) -> None:
    """Create an empty file to bind upon."""
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def add_mounts(root: str, mounts: list[Plan]) -> None:
    """Bind the volumes and files of the plan, outer ones first, then make the read-only ones so."""
    for each in mounts:
        target = root + each["target"]
        if os.path.isdir(each["source"]):
            os.makedirs(target, exist_ok=True)
        elif not os.path.exists(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            make_file(target)
        mount(each["source"], target, None, MS_BIND | MS_REC)
    for each in mounts:
        if each["read_only"]:
            target = root + each["target"]
            has = os.statvfs(target).f_flag
            kept = sum(flag for bit, flag in LOCKED.items() if has & bit)
            mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def run(plan: Plan, lifeline: int) -> None:
    """In the child: enter the root and exec the program."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if select.select([lifeline], [], [], 0)[0]:
        sys.exit("the parent is gone")  # it ended, and so closed its end of the pipe, before prctl
    os.setsid()
    mount("proc", plan["root"] + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    os.chroot(plan["root"])
    os.chdir(plan["directory"])
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.execvpe(plan["argv"][0], plan["argv"], plan["environment"])  # noqa: S606


def report(plan: Plan, error: OSError) -> None:
    """Write, for the node, why the program could not be started."""
    with open(plan["error_file"], "w") as file:
        file.write(str(error))


def main(argv: list[str]) -> int:
    """Set up, start the program, wait for it and return its exit code."""
    with open(argv[1]) as file:
        plan = json.load(file)
    parent = int(argv[2])
    try:
        enter_namespaces(plan["host_name"])
        die_with(parent)
        build_root(plan["root"], plan["made"], [each["target"] for each in plan["mounts"]])
        add_mounts(plan["root"], plan["mounts"])
    except OSError as error:
        report(plan, error)
        return CANNOT_RUN
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until there is a child to forward it to
    error_file = os.open(plan["error_file"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    os.set_inheritable(plan["started"], False)  # the exec closes it, and the node awaits that
    lifeline, held = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(held)
        try:
            run(plan, lifeline)
        except OSError as error:
            what = plan["argv"][0] if error.errno in (errno.ENOENT, errno.EACCES) else "the program"
            os.write(error_file, f"cannot run {what}: {error}".encode())
        finally:
            os._exit(CANNOT_RUN)
    os.close(plan["started"])
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
