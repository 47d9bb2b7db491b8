"""Reading and writing a cluster for the demo and the scenarios: a small synchronous client and `kubectl`.

`kubectl` does what a user would do with it. The client polls, because a kubectl process for each poll would
take CPU from the programs that are measured.
"""

import base64
import http.client
import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from headroom_cli.demo.failure import DemoError
from local_cluster.tools import find_kubectl

T = TypeVar("T")
Manifest = dict[str, Any]
MERGE_PATCH = "application/merge-patch+json"


class ClusterApi:
    """The cluster's admin, over one kept-alive connection. Not thread-safe."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._address = urllib.parse.urlsplit(cluster["server"])
        self._tls = _tls_context(cluster, user)
        self._connection: http.client.HTTPSConnection | None = None

    def close(self) -> None:
        """Close the connection; the next request makes a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def request(
        self, method: str, path: str, body: object = None, content_type: str = "application/json"
    ) -> tuple[int, Any]:
        """Return the status and the parsed JSON body. On a closed connection, reconnect and retry once."""
        payload = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type} if payload else {}
        for attempt in (1, 2):
            if self._connection is None:
                self._connection = http.client.HTTPSConnection(
                    self._address.hostname or "", self._address.port, context=self._tls, timeout=30
                )
            try:
                self._connection.request(method, path, payload, headers)
                response = self._connection.getresponse()
                return response.status, json.loads(response.read() or b"null")
            except (http.client.HTTPException, OSError) as error:
                self.close()
                if attempt == 2:
                    raise DemoError(
                        f"the API server does not answer ({error}); is the demo still up?"
                    ) from error
        raise AssertionError("the loop returns or raises")

    def get(self, path: str) -> Manifest | None:
        """Return the object, or None when there is none."""
        status, body = self.request("GET", path)
        if status == 404:
            return None
        return _expect(status, body, f"GET {path}")

    def items(self, path: str) -> list[Manifest]:
        """Return the items of a list; empty when the resource itself does not exist."""
        found = self.get(path)
        return [] if found is None else list(found.get("items") or [])

    def create(self, path: str, body: Manifest) -> Manifest:
        """POST an object."""
        return _expect(*self.request("POST", path, body), f"POST {path}")

    def patch(self, path: str, body: Manifest) -> Manifest:
        """Merge-patch an object."""
        return _expect(*self.request("PATCH", path, body, MERGE_PATCH), f"PATCH {path}")

    def patch_json(self, path: str, operations: list[Manifest]) -> Manifest:
        """Apply a JSON patch (RFC 6902)."""
        return _expect(
            *self.request("PATCH", path, operations, "application/json-patch+json"), f"PATCH {path}"
        )

    def delete(self, path: str, **options: str) -> None:
        """Delete an object; it is not an error that none exists."""
        status, body = self.request("DELETE", path, options or None)
        if status not in (200, 202, 404):
            _expect(status, body, f"DELETE {path}")


def condition(found: Mapping[str, Any] | None, kind: str) -> Mapping[str, Any] | None:
    """Return the condition of that type from an object's status, or None."""
    conditions = ((found or {}).get("status") or {}).get("conditions") or []
    return next((entry for entry in conditions if entry.get("type") == kind), None)


def wait_for(
    what: str, probe: Callable[[], T | None], *, limit_s: float, every_s: float = 0.05
) -> tuple[T, float]:
    """Poll until the probe returns something true; return that and the seconds it took.

    Raises DemoError, naming what was awaited, when the limit passes first.
    """
    started = time.monotonic()
    while True:
        found = probe()
        elapsed = time.monotonic() - started
        if found:
            return found, elapsed
        if elapsed > limit_s:
            raise DemoError(f"did not happen within {limit_s:.0f} s: {what}")
        time.sleep(every_s)


def kubectl(kubeconfig: Path, *arguments: str, stdin: str | None = None) -> str:
    """Run kubectl as a user would and return its output. Raises DemoError with kubectl's message."""
    done = subprocess.run(  # noqa: S603 - arguments are the demo's own
        [str(find_kubectl()), *arguments],
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    if done.returncode != 0:
        raise DemoError(f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _expect(status: int, body: Any, what: str) -> Manifest:
    if status >= 300:
        message = body.get("message") if isinstance(body, dict) else body
        raise DemoError(f"{what}: {status} {message}")
    return dict(body)


def _tls_context(cluster: Mapping[str, str], user: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=_inline(cluster, "certificate-authority").decode())
    # The ssl module takes a client certificate from files only.
    with tempfile.TemporaryDirectory() as scratch:
        pair = Path(scratch) / "client.pem"
        pair.touch(mode=0o600)
        pair.write_bytes(_inline(user, "client-certificate") + b"\n" + _inline(user, "client-key"))
        context.load_cert_chain(pair)
    return context


def _inline(source: Mapping[str, str], name: str) -> bytes:
    """Return a kubeconfig entry that is given inline (`name-data`) or as a path (`name`)."""
    if data := source.get(f"{name}-data"):
        return base64.b64decode(data)
    return Path(source[name]).read_bytes()


def progress(text: str) -> None:
    """Print a line of progress at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
