"""The API server's address and the credentials for it, from the pod's ServiceAccount or a kubeconfig file.

TLS certificates are always verified: a kubeconfig with insecure-skip-tls-verify is refused.
"""

import base64
import os
import ssl
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import yaml

from cluster_client.errors import ApiError
from cluster_client.memory_file import memory_file

#: Mount path of a pod's ServiceAccount.
SERVICE_ACCOUNT_DIR: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """The address of one API server, and the credentials for it."""

    server: str
    """URL without a path."""
    tls: ssl.SSLContext | None = None
    """None: the system's authorities, or plain HTTP where the URL says so."""
    token_file: Path | None = None
    """Read again for every request: projected tokens are renewed in place."""
    token: str = ""
    """Used when there is no token file."""

    @classmethod
    def in_cluster(
        cls,
        directory: Path = SERVICE_ACCOUNT_DIR,
        env: Mapping[str, str] = os.environ,
        *,
        otherwise: str = "name a kubeconfig file",
    ) -> Self:
        """Return the access of the pod's ServiceAccount.

        Raises ApiError outside of a cluster or without a token. `otherwise` ends the first message with what
        a user can do.
        """
        host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise ApiError(0, f"KUBERNETES_SERVICE_HOST is not set: not in a cluster; {otherwise}")
        token, ca = directory / "token", directory / "ca.crt"
        if not token.is_file():
            msg = f"{token} is missing: the pod needs its ServiceAccount token mounted"
            raise ApiError(0, msg)
        tls = ssl.create_default_context(cafile=str(ca) if ca.is_file() else None)
        host = f"[{host}]" if ":" in host else host
        return cls(server=f"https://{host}:{port}", tls=tls, token_file=token)

    @classmethod
    def from_kubeconfig(cls, path: Path) -> Self:
        """Return the access of the file's current context. Raises ApiError when there is none to use."""
        try:
            config = yaml.safe_load(path.read_text())
            context = _named(config, "contexts", config["current-context"])["context"]
            cluster = _named(config, "clusters", context["cluster"])["cluster"]
            user = _named(config, "users", context["user"])["user"]
            server = str(cluster["server"]).rstrip("/")
            secure = server.startswith("https:")
            _refuse(path, cluster, user, secure=secure)
            tls = _client_tls(cluster, user, path.parent) if secure else None
            # Relative to the kubeconfig file, as kubectl reads it.
            token_file = path.parent / str(user["tokenFile"]) if "tokenFile" in user else None
            return cls(server=server, tls=tls, token_file=token_file, token=str(user.get("token", "")))
        except ApiError:
            raise
        except Exception as error:  # arbitrary content raises KeyError, TypeError, YAMLError and others
            msg = f"{path}: no usable current context ({type(error).__name__})"
            raise ApiError(0, msg) from error

    def headers(self) -> dict[str, str]:
        """Return the headers of a request. Raises ApiError when the token file cannot be read."""
        token = self.token
        if self.token_file is not None:
            try:
                token = self.token_file.read_text(encoding="ascii").strip()
            except (OSError, ValueError) as error:
                msg = f"{self.token_file}: the token cannot be read ({type(error).__name__})"
                raise ApiError(0, msg) from None
        return {"Authorization": f"Bearer {token}"} if token else {}


def _refuse(path: Path, cluster: Mapping[str, Any], user: Mapping[str, Any], *, secure: bool) -> None:
    if cluster.get("insecure-skip-tls-verify"):
        msg = f"{path}: insecure-skip-tls-verify is refused; name the cluster's certificate-authority instead"
        raise ApiError(0, msg)
    if not secure and ("token" in user or "tokenFile" in user):
        raise ApiError(0, f"{path}: a token is not sent over plain HTTP; use an https server")
    if "exec" in user or "auth-provider" in user:
        msg = f"{path}: credentials from a command are not supported; use a token, tokenFile or certificate"
        raise ApiError(0, msg)


def _named(config: Any, section: str, name: str) -> Any:
    return next(entry for entry in config[section] if entry["name"] == name)


def _client_tls(cluster: Mapping[str, Any], user: Mapping[str, Any], beside: Path) -> ssl.SSLContext:
    """Return a context with the cluster's authority and the user's certificate, inline or from files."""
    authority = _material(cluster, "certificate-authority", beside)
    tls = ssl.create_default_context(cadata=authority.decode() if authority is not None else None)
    certificate, key = (_material(user, name, beside) for name in ("client-certificate", "client-key"))
    if certificate is not None and key is not None:
        with ExitStack() as held:
            tls.load_cert_chain(memory_file(certificate, held), memory_file(key, held))
    return tls


def _material(section: Mapping[str, Any], name: str, beside: Path) -> bytes | None:
    if inline := section.get(f"{name}-data"):
        material = base64.b64decode(inline, validate=True)
    elif path := section.get(name):
        material = (beside / str(path)).read_bytes()
    else:
        return None
    if not material:  # ssl would trust the system's authorities instead of an empty one
        raise ValueError(name)
    return material
