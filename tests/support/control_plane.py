"""Real clusters for tests: an API server alone, or one with a node that runs pods.

The programs are built by `headroom local build` beforehand (`make` does it); a test never waits for a build.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from local_cluster.binaries import find_binaries
from local_cluster.cluster import LocalCluster
from local_cluster.control_plane import ControlPlane
from local_cluster.images import DEFAULT_IMAGES, ImageCommand


@contextmanager
def running_control_plane(directory: Path) -> Iterator[ControlPlane]:
    """Run etcd, API server and controller manager, without a node, in `directory`.

    The ControlPlane has `kubeconfig`, `url`, `certificate_authority`, `client` (certificate and key of
    the administrator), `audit_log` and `log_directory`. Enter it from the main thread.
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


@contextmanager
def running_cluster(
    directory: Path, images: Mapping[str, ImageCommand] = DEFAULT_IMAGES, *, names: str = "dns"
) -> Iterator[LocalCluster]:
    """Run a whole cluster in `directory`: control plane and a node that runs pods of `images`.

    Enter it from a thread that lives on (the main one): the cluster ends with it. Fails if anything of it is
    left running afterwards.
    """
    if find_binaries() is None:
        pytest.fail("the control plane is not built: run `headroom local build` once")
    cluster = LocalCluster(directory, images, tied=True, names=names)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()
