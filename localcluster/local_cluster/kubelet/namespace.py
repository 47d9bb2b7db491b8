"""What the node's first process does in its own mount namespace, before it starts anything.

The machine's own folders stay as they are: /run is an empty tmpfs, writes to /var go to a layer of it, and
the kernel settings that the kubelet writes are files of it.
"""

import ctypes
import os
from pathlib import Path
from typing import Final

from local_cluster.errors import StartError
from local_cluster.kubelet.settings import STATE

_MS_BIND: Final = 1 << 12
_MS_REC: Final = 1 << 14
_MS_SHARED: Final = 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)
#: Settings of the whole machine that the kubelet wants, and their values.
_MACHINE_SETTINGS: Final = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def furnish(directory: Path) -> None:
    """Show the cluster's `directory` at STATE and keep every other write from the machine.

    Raises:
        StartError: a mount was refused.
    """
    held = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    _mount("tmpfs", "/run", "tmpfs", 0, "mode=755,size=64m")
    STATE.mkdir()
    _mount(f"/proc/self/fd/{held}", str(STATE), None, _MS_BIND | _MS_REC)
    os.close(held)
    upper, work = Path("/run/var/upper"), Path("/run/var/work")
    for each in (upper, work):
        each.mkdir(parents=True)
    _mount("overlay", "/var", "overlay", 0, f"lowerdir=/var,upperdir={upper},workdir={work}")
    for name, value in _MACHINE_SETTINGS.items():
        setting = Path("/proc/sys", name)
        if setting.exists():
            stand_in = Path("/run/machine-settings", name)
            stand_in.parent.mkdir(parents=True, exist_ok=True)
            stand_in.write_text(f"{value}\n")
            _mount(str(stand_in), str(setting), None, _MS_BIND)
    # Volumes that are mounted later show in the containers that began earlier.
    _mount("none", "/", None, _MS_SHARED | _MS_REC)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")  # of this network namespace


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if each is None else os.fsencode(each) for each in (source, target, kind, data)]
    if _libc.mount(*encoded[:3], ctypes.c_ulong(flags), encoded[3]) != 0:
        error = os.strerror(ctypes.get_errno())
        message = f"the node's own {target} cannot be mounted: {error}"
        raise StartError(message)
