"""A control plane in a directory: etcd, kube-apiserver and kube-controller-manager as children.

RBAC authorises, ServiceAccount admission is on and every request is audited, as on a real cluster. On
loopback, the controllers that need real pod addresses (EndpointSlices refuse loopback) are left out. No state
is kept: each start begins with an empty cluster.
"""

import http.client
import ipaddress
import json
import shutil
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from local_cluster.binaries import Binaries
from local_cluster.errors import StartError
from local_cluster.pki import MASTERS, Authority, Pair, make_key_pair, write_private
from local_cluster.processes import Child, free_ports, stop_all

HOST: Final = "127.0.0.1"
CLUSTER_DOMAIN: Final = "cluster.local"
ISSUER: Final = f"https://kubernetes.default.svc.{CLUSTER_DOMAIN}"
READY_TIMEOUT_S: Final = 120.0
_STOP_GRACE_S: Final = 2.0
_POLL_S: Final = 0.05
_SERVER_NAMES: Final = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    f"kubernetes.default.svc.{CLUSTER_DOMAIN}",
)
_CONTROLLERS: Final = (
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "namespace-controller",
    "garbage-collector-controller",
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "job-controller",
    "disruption-controller",
    "resourcequota-controller",
    "clusterrole-aggregation-controller",
)
#: What a real node needs besides.
_NODE_CONTROLLERS: Final = (
    "endpoints-controller",
    "endpointslice-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "pod-garbage-collector-controller",
    "daemonset-controller",
    "replicationcontroller-controller",
)
_AUDIT_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*", "/version", "/openapi/*"]},
        {"level": "Metadata"},
    ],
}
_LOOPBACK_FLAGS: Final = (
    # It taints every new node, and the controller that removes the taint does not run here.
    "--disable-admission-plugins=TaintNodesByCondition",
    "--endpoint-reconciler-type=none",  # it would write an EndpointSlice with a loopback address
)
_API_SERVER_FLAGS: Final = (
    "--authorization-mode=RBAC",
    "--audit-log-maxsize=200",
    "--audit-log-maxbackup=1",
    "--event-ttl=1h",
    "--profiling=false",
)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a control plane listens, and where its node and its Services are. The default is loopback."""

    host: str = HOST
    """Address of the API server."""
    node: str = HOST
    """Address of the node, for its certificate."""
    services: str = "10.96.0.0/16"
    """CIDR of the Services; its first address is that of the Service `kubernetes`."""
    routed: bool = False
    """Pods have real addresses: all controllers run, and Services have endpoints."""

    @property
    def first_service(self) -> str:
        """The address of the Service `kubernetes`."""
        return str(next(ipaddress.ip_network(self.services).hosts()))


@dataclass(frozen=True, slots=True)
class _Keys:
    """The files by which the parts of the control plane authenticate each other."""

    authority: Path
    etcd: Pair
    server: Pair
    tokens: Pair
    manager_config: Path


#: Whether a status and a body are what is waited for.
Accept = Callable[[int, bytes], bool]


def is_there(status: int, _body: bytes) -> bool:
    """Accept every object that exists."""
    return status == http.HTTPStatus.OK


class ControlPlane:
    """The three processes. `start` and `stop` belong to one thread, which must live as long as they do."""

    def __init__(self, directory: Path, binaries: Binaries) -> None:
        self._directory = directory.absolute()
        self._addresses = Addresses()
        self._is_cleared = False
        self._binaries = binaries
        self._children: list[Child] = []
        self.log_directory: Path = self._directory / "logs"
        self.audit_log: Path = self.log_directory / "audit.log"
        self.kubeconfig: Path = self._directory / "kubeconfig"
        self.url = ""

    @property
    def node_kubeconfig(self) -> Path:
        """A kubeconfig for a node's use."""
        return self._pki / "node.kubeconfig"

    @property
    def node_server(self) -> Pair:
        """Certificate and key by which a node proves itself, as a client and as a server."""
        return Pair(self._pki / "node.crt", self._pki / "node.key")

    @property
    def certificate_authority(self) -> Path:
        """The file (PEM) that a client trusts the API server by."""
        return self._pki / "ca.crt"

    @property
    def client(self) -> Pair:
        """Certificate and key of the cluster's administrator."""
        return Pair(self._pki / "admin.crt", self._pki / "admin.key")

    @property
    def _pki(self) -> Path:
        return self._directory / "pki"

    def clear(self) -> None:
        """Remove what an earlier start left; `start` does it, unless it was done already."""
        for stale in (self._pki, self._directory / "etcd", self.log_directory):
            shutil.rmtree(stale, ignore_errors=True)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.log_directory.mkdir()
        self._is_cleared = True

    def start(self, addresses: Addresses | None = None) -> None:
        """Start with an empty cluster and wait until the default namespace takes pods.

        Raises:
            StartError: a process ended or was not ready in READY_TIMEOUT_S; none is left behind.
        """
        self._addresses = addresses or self._addresses
        if not self._is_cleared:
            self.clear()
        self._is_cleared = False
        try:
            self._start_all()
            self.wait_until(
                "/api/v1/namespaces/default/serviceaccounts/default", "the default ServiceAccount"
            )
            self.wait_until("/api/v1/namespaces/default/configmaps/kube-root-ca.crt", "the root certificate")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process of it; does nothing when none runs."""
        children, self._children = self._children, []
        stop_all(reversed(children), _STOP_GRACE_S)

    def check(self) -> None:
        """Raise StartError if one of the processes has ended."""
        for child in self._children:
            child.check()

    def _start_all(self) -> None:
        etcd_port, peer_port = free_ports(2)
        (api_port,) = free_ports(1, self._addresses.host)
        self.url = f"https://{self._addresses.host}:{api_port}"
        keys = self._make_keys()
        self._start_etcd(keys, f"https://{HOST}:{etcd_port}", f"http://{HOST}:{peer_port}")
        self._start_api_server(keys, f"https://{HOST}:{etcd_port}", api_port)
        # On a starved machine the API server takes longer than the controller manager waits for it.
        self.wait_until("/readyz", "the API server")
        self._start_controller_manager(keys)

    def _make_keys(self) -> _Keys:
        authority = Authority(self._pki, "headroom-local-ca")
        where = self._addresses
        names = (*dict.fromkeys((HOST, where.host)), where.first_service, *_SERVER_NAMES)
        keys = _Keys(
            authority.certificate,
            authority.issue("etcd", "etcd", hosts=(HOST,)),
            authority.issue("kube-apiserver", "kube-apiserver", groups=(MASTERS,), hosts=names),
            make_key_pair(self._pki, "service-accounts"),
            self._pki / "controller-manager.kubeconfig",
        )
        admin = authority.issue("admin", "headroom-admin", groups=(MASTERS,))
        manager = authority.issue("controller-manager", "system:kube-controller-manager", groups=(MASTERS,))
        node = authority.issue(
            "node", "system:node:local", groups=(MASTERS,), hosts=(where.node, "localhost")
        )
        for path, pair in (
            (self.kubeconfig, admin),
            (self.node_kubeconfig, node),
            (keys.manager_config, manager),
        ):
            write_kubeconfig(path, self.url, authority.certificate, pair)
        return keys

    def _start_etcd(self, keys: _Keys, url: str, peer_url: str) -> None:
        self._run(
            self._binaries.etcd,
            f"--data-dir={self._directory / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=default={peer_url}",
            f"--cert-file={keys.etcd.certificate}",
            f"--key-file={keys.etcd.key}",
            f"--trusted-ca-file={keys.authority}",
            "--client-cert-auth",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )

    def _start_api_server(self, keys: _Keys, etcd_url: str, port: int) -> None:
        policy = self._pki / "audit-policy.yaml"
        policy.write_text(yaml.safe_dump(_AUDIT_POLICY))
        where = self._addresses
        self._run(
            self._binaries.kube_apiserver,
            f"--etcd-servers={etcd_url}",
            f"--etcd-cafile={keys.authority}",
            f"--etcd-certfile={keys.server.certificate}",
            f"--etcd-keyfile={keys.server.key}",
            f"--bind-address={where.host}",
            f"--advertise-address={where.host}",
            f"--secure-port={port}",
            f"--tls-cert-file={keys.server.certificate}",
            f"--tls-private-key-file={keys.server.key}",
            f"--client-ca-file={keys.authority}",
            f"--kubelet-certificate-authority={keys.authority}",
            f"--kubelet-client-certificate={keys.server.certificate}",
            f"--kubelet-client-key={keys.server.key}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-issuer={ISSUER}",
            f"--service-account-key-file={keys.tokens.certificate}",
            f"--service-account-signing-key-file={keys.tokens.key}",
            f"--service-cluster-ip-range={where.services}",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.audit_log}",
            *_API_SERVER_FLAGS,
            *(() if where.routed else _LOOPBACK_FLAGS),
        )

    def _start_controller_manager(self, keys: _Keys) -> None:
        controllers = _CONTROLLERS + (_NODE_CONTROLLERS if self._addresses.routed else ())
        self._run(
            self._binaries.kube_controller_manager,
            f"--kubeconfig={keys.manager_config}",
            f"--controllers={','.join(controllers)}",
            f"--service-account-private-key-file={keys.tokens.key}",
            f"--root-ca-file={keys.authority}",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            "--profiling=false",
        )

    def _run(self, program: Path, *flags: str) -> None:
        name = program.name
        self._children.append(Child(name, (str(program), *flags), self.log_directory / f"{name}.log"))

    def wait_until(
        self, path: str, what: str, check: Callable[[], None] | None = None, accept: Accept = is_there
    ) -> None:
        """Ask the API server for `path` until `accept` takes the answer, while `check` raises nothing.

        Raises:
            StartError: a process ended, or READY_TIMEOUT_S have passed; `what` is named in the text.
        """
        deadline = time.monotonic() + READY_TIMEOUT_S
        ask = self._asker()
        while not accept(*ask(path)):
            (check or self.check)()
            if time.monotonic() > deadline:
                message = f"{what} was not ready in {READY_TIMEOUT_S:.0f} s; see {self.log_directory}"
                raise StartError(message)
            time.sleep(_POLL_S)

    def _asker(self) -> Callable[[str], tuple[int, bytes]]:
        context = ssl.create_default_context(cafile=str(self.certificate_authority))
        context.load_cert_chain(self.client.certificate, self.client.key)
        host, port = self._addresses.host, int(self.url.rpartition(":")[2])

        def ask(path: str) -> tuple[int, bytes]:
            connection = http.client.HTTPSConnection(host, port, context=context, timeout=5)
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                return response.status, response.read()
            except (OSError, http.client.HTTPException):
                return 0, b""
            finally:
                connection.close()

        return ask


def write_kubeconfig(path: Path, url: str, authority: Path, client: Pair) -> None:
    """Write a kubeconfig (mode 0600) that names the certificate files by absolute path."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": {"server": url, "certificate-authority": str(authority)}}],
        "users": [
            {
                "name": "local",
                "user": {"client-certificate": str(client.certificate), "client-key": str(client.key)},
            }
        ],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": "local"}}],
        "current-context": "local",
    }
    write_private(path, json.dumps(config, indent=1).encode())
