"""Real clusters for tests: an API server alone, or one with a node that runs pods.

The programs are built by `headroom local build` beforehand (`make` does it); a test never waits for a build.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from local_cluster.binaries import find_binaries
from local_cluster.control_plane import ControlPlane


@contextmanager
def running_control_plane(directory: Path) -> Iterator[ControlPlane]:
    """Run etcd, API server and controller manager, without a node, in `directory`.

    What it yields has `kubeconfig`, `url`, `certificate_authority`, `client` (certificate and key of the
    administrator), `audit_log` and `log_directory`. Enter it from the main thread.
    """
    binaries = find_binaries()
    if binaries is None:
        pytest.fail("the control plane is not built: run `headroom local build` once")
    plane = ControlPlane(directory, binaries)
    plane.start()
    try:
        yield plane
    finally:
        plane.stop()
