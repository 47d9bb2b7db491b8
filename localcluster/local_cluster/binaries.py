"""The programs of a cluster: found in the cache, else built once with Go; a control plane's may be given.

KUBEBUILDER_ASSETS names a folder with those of a control plane; the programs of a kubelet node are built.

The versions are those that the go.mod files beside this module require. Nothing else is downloaded: Go
fetches the published modules and checks them against the committed go.sum.
"""

import fcntl
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from local_cluster.errors import BuildError, ToolMissingError
from local_cluster.tools import require_go

ASSETS_VARIABLE: Final = "KUBEBUILDER_ASSETS"
_SOURCES: Final = Path(__file__).parent / "controlplane"
_PROGRESS_EVERY_S: Final = 10.0
_POLL_S: Final = 0.2
_ERROR_LINES: Final = 5

Progress = Callable[[str], None]

_GO_ENVIRONMENT: Final = {
    "CGO_ENABLED": "0",
    "GOTOOLCHAIN": "local",
    "GOFLAGS": "-mod=readonly -buildvcs=false",  # git may be absent
}


@dataclass(frozen=True, slots=True)
class Binaries:
    """Paths of the three programs of a control plane."""

    etcd: Path
    kube_apiserver: Path
    kube_controller_manager: Path

    @classmethod
    def of(cls, directory: Path) -> "Binaries":
        """Return the paths that the programs have inside `directory`, present or not."""
        return cls(directory / "etcd", directory / "kube-apiserver", directory / "kube-controller-manager")

    def missing(self) -> list[str]:
        """Return the names of the programs that are absent or not executable."""
        paths = (self.etcd, self.kube_apiserver, self.kube_controller_manager)
        return [path.name for path in paths if not os.access(path, os.X_OK)]


@dataclass(frozen=True, slots=True)
class Build:
    """One run of `go build`: a module's folder below controlplane/ and what is built from it."""

    module: str
    programs: tuple[str, ...]
    packages: tuple[str, ...]
    """What Go builds, in the order of `programs`."""
    ldflags: str
    expected: str
    tags: tuple[str, ...] = ()


def required_version(go_mod: str, module: str) -> str:
    """Return the version (`v1.2.3`) that the text of a go.mod requires of `module`.

    Raises:
        ValueError: the module is not required there.
    """
    found = re.search(rf"^\s*(?:require\s+)?{re.escape(module)}\s+(v\S+)", go_mod, re.MULTILINE)
    if found is None:
        message = f"go.mod does not require {module}"
        raise ValueError(message)
    return found[1]


def kubernetes_version() -> str:
    """Return the pinned version of Kubernetes, such as v1.36.3."""
    return required_version((_SOURCES / "kubernetes" / "go.mod").read_text(), "k8s.io/kubernetes")


def etcd_version() -> str:
    """Return the pinned version of etcd, such as v3.6.13."""
    return required_version((_SOURCES / "etcd" / "go.mod").read_text(), "go.etcd.io/etcd/server/v3")


def helm_version() -> str:
    """Return the pinned version of Helm, such as v3.22.0."""
    return required_version((_SOURCES / "helm" / "go.mod").read_text(), "helm.sh/helm/v3")


def pubsub_version() -> str:
    """Return the pinned version of Google's Pub/Sub module, such as v2.9.0."""
    return required_version((_SOURCES / "pubsub" / "go.mod").read_text(), "cloud.google.com/go/pubsub/v2")


def containerd_version() -> str:
    """Return the pinned version of containerd, such as v2.3.6."""
    return required_version(
        (_SOURCES / "containerd" / "go.mod").read_text(), "github.com/containerd/containerd/v2"
    )


def _kubernetes_flags() -> str:
    """Return linker flags that set Kubernetes' version; without them kubectl warns about the server's."""
    version = kubernetes_version()
    major, minor, *_ = version.removeprefix("v").split(".")
    values = (
        f"k8s.io/component-base/version.gitVersion={version}",
        f"k8s.io/component-base/version.gitMajor={major}",
        f"k8s.io/component-base/version.gitMinor={minor}",
        "k8s.io/component-base/version.gitTreeState=clean",
        f"k8s.io/client-go/pkg/version.gitVersion={version}",
    )
    return " ".join(("-s -w", *(f"-X {value}" for value in values)))


def builds() -> tuple[Build, ...]:
    """Return the builds of a control plane, the quick one first."""
    stamped = _kubernetes_flags()
    return (
        Build("etcd", ("etcd",), ("./cmd/etcd",), "-s -w", "about a minute"),
        Build(
            "kubernetes",
            ("kube-apiserver", "kube-controller-manager"),
            ("./cmd/kube-apiserver", "./cmd/kube-controller-manager"),
            stamped,
            "about 10 minutes on 2 cores",
        ),
    )


def node_builds() -> tuple[Build, ...]:
    """Return the builds of a kubelet node, the quick one first."""
    containerd = "github.com/containerd/containerd/v2"
    names = ("containerd", "containerd-shim-runc-v2", "ctr")
    kubernetes = ("kubelet", "kube-proxy", "kube-scheduler")
    return (
        Build("pause", ("pause",), (".",), "-s -w", "a few seconds"),
        Build(
            "kubernetes",
            kubernetes,
            tuple(f"./cmd/{name}" for name in kubernetes),
            _kubernetes_flags(),
            "about 2 minutes on 2 cores after the control plane",
        ),
        Build(
            "containerd",
            names,
            tuple(f"{containerd}/cmd/{name}" for name in names),
            f"-s -w -X {containerd}/version.Version={containerd_version()}",
            "about 3 minutes on 2 cores",
            # Snapshotters that need kernel modules or C libraries; the node uses overlayfs.
            ("no_btrfs", "no_devmapper", "no_zfs", "no_aufs"),
        ),
    )


def helm_build() -> Build:
    """Return how to build Helm; linker flags set the Kubernetes version that `helm template` assumes."""
    major, minor, *_ = kubernetes_version().removeprefix("v").split(".")
    values = (
        f"helm.sh/helm/v3/internal/version.version={helm_version()}",
        f"helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor={major}",
        f"helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor={minor}",
    )
    stamped = " ".join(("-s -w", *(f"-X {value}" for value in values)))
    return Build("helm", ("helm",), ("helm.sh/helm/v3/cmd/helm",), stamped, "about 3 minutes on 2 cores")


def cache_directory() -> Path:
    """Return where built programs are kept: one folder for each pair of versions."""
    return _cache("control-plane", f"{kubernetes_version()}-{etcd_version()}")


def _cache(what: str, version: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "headroom" / what / version


def find_binaries() -> Binaries | None:
    """Return the programs if they can be used at once, None if they would have to be built.

    Raises:
        ToolMissingError: KUBEBUILDER_ASSETS is set and lacks one of them.
    """
    if assets := os.environ.get(ASSETS_VARIABLE):
        binaries = Binaries.of(Path(assets))
        if missing := binaries.missing():
            message = f"{ASSETS_VARIABLE}={assets} lacks {', '.join(missing)}; add it, or unset the variable"
            raise ToolMissingError(message)
        return binaries
    binaries = Binaries.of(cache_directory())
    return None if binaries.missing() else binaries


def ensure_binaries(progress: Progress) -> Binaries:
    """Return the programs, built first if need be; `progress` gets a line every ten seconds of a build.

    Raises:
        ToolMissingError: Go is needed and not installed.
        BuildError: Go could not build them.
    """
    if (found := find_binaries()) is not None:
        return found
    go = require_go()
    directory = cache_directory()
    _build_lacking(go, builds(), directory, progress)
    return Binaries.of(directory)


def ensure_helm(progress: Progress) -> Path:
    """Return helm, built first if need be; no cluster needs it, only tests and the release of the chart.

    Raises:
        ToolMissingError: Go is needed and not installed.
        BuildError: Go could not build it.
    """
    directory = _cache("helm", helm_version())
    helm = directory / "helm"
    if not os.access(helm, os.X_OK):
        _build_lacking(require_go(), (helm_build(),), directory, progress)
    return helm


def ensure_pubsub_fake(progress: Progress) -> Path:
    """Return Google's fake Pub/Sub server, built first if need be; only tests need it.

    Raises:
        ToolMissingError: Go is needed and not installed.
        BuildError: Go could not build it.
    """
    directory = _cache("pubsub-fake", pubsub_version())
    fake = directory / "pubsub-fake"
    if not os.access(fake, os.X_OK):
        build = Build(
            "pubsub", ("pubsub-fake",), ("./cmd/pubsub-fake",), "-s -w", "about 2 minutes on 2 cores"
        )
        _build_lacking(require_go(), (build,), directory, progress)
    return fake


def node_cache_directory() -> Path:
    """Return where the built programs of a kubelet node are kept."""
    return _cache("node", f"{kubernetes_version()}-{containerd_version()}")


def image_cache_directory() -> Path:
    """Return where the archives of a kubelet node's images are kept."""
    return _cache("node", "images")


def node_programs_missing() -> bool:
    """Return whether a program of a kubelet node would have to be built."""
    directory = node_cache_directory()
    names = (name for build in node_builds() for name in build.programs)
    return any(not os.access(directory / name, os.X_OK) for name in names)


def ensure_node_programs(progress: Progress) -> Path:
    """Return the folder with the programs of a kubelet node (those of `node_builds`), built first if need be.

    Raises:
        ToolMissingError: Go is needed and not installed.
        BuildError: Go could not build them.
    """
    directory = node_cache_directory()
    if node_programs_missing():
        _build_lacking(require_go(), node_builds(), directory, progress)
    return directory


def _build_lacking(go: Path, wanted: Iterable[Build], directory: Path, progress: Progress) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with _only_builder(directory, progress):
        for build in wanted:
            if any(not os.access(directory / name, os.X_OK) for name in build.programs):
                _build(go, build, directory, progress)


@contextmanager
def _only_builder(directory: Path, progress: Progress) -> Iterator[None]:
    with (directory / ".lock").open("w") as lock:
        waited = 0.0
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waited % _PROGRESS_EVERY_S == 0:
                    progress(f"another process builds in {directory}; waiting ({waited:.0f} s)")
                time.sleep(1)
                waited += 1
        yield


def _build(go: Path, build: Build, directory: Path, progress: Progress) -> None:
    what = " and ".join(build.programs)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".building-") as temporary:
        log = Path(temporary) / "go.log"
        argv = [str(go), "build", "-v", "-trimpath", "-ldflags", build.ldflags]
        argv += ["-tags", ",".join(build.tags)] if build.tags else []
        argv += ["-o", f"{temporary}/", *build.packages]
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - go itself, no shell
                argv,
                cwd=_SOURCES / build.module,
                env=os.environ | _GO_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                _follow(process, log, f"building {what} (the first time takes {build.expected})", progress)
            finally:
                process.kill()
                process.wait()
        if process.returncode != 0:
            last = " | ".join(log.read_text(errors="replace").splitlines()[-_ERROR_LINES:])
            message = f"go could not build {what} (exit code {process.returncode}): {last}"
            raise BuildError(message)
        for name in build.programs:
            (Path(temporary) / name).rename(directory / name)


def _follow(process: subprocess.Popen[bytes], log: Path, what: str, progress: Progress) -> None:
    """Wait for `process`; report its run time and the packages done every _PROGRESS_EVERY_S."""
    began = time.monotonic()
    reported = began - _PROGRESS_EVERY_S
    while process.poll() is None:
        now = time.monotonic()
        if now - reported >= _PROGRESS_EVERY_S:
            reported = now
            compiled = log.read_bytes().count(b"\n")
            progress(f"{what}: {now - began:.0f} s, {compiled} packages compiled or fetched")
        time.sleep(_POLL_S)
