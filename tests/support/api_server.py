"""A plain client of a test's API server: each method makes one request and returns the answer unchanged."""

import http.client
import json
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from local_cluster.control_plane import ControlPlane

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the API server."""

    code: int
    body: dict[str, Any]

    @property
    def message(self) -> str:
        """The Status message of a refusal; empty for an object."""
        return str(self.body.get("message", "")) if self.body.get("kind") == "Status" else ""


class ApiServer:
    """A client of a control plane with its administrator's rights; each request has its own connection."""

    def __init__(self, plane: ControlPlane) -> None:
        self._address = urlsplit(plane.url)
        self._tls = ssl.create_default_context(cafile=str(plane.certificate_authority))
        self._tls.load_cert_chain(plane.client.certificate, plane.client.key)

    def request(
        self, method: str, path: str, body: object = None, content_type: str = JSON, accept: str = JSON
    ) -> Answer:
        connection = http.client.HTTPSConnection(
            self._address.hostname or "", self._address.port, context=self._tls, timeout=30
        )
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": content_type, "Accept": accept})
            response = connection.getresponse()
            return Answer(response.status, json.loads(response.read()))
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        return self.request("GET", path)

    def create(self, path: str, body: object) -> Answer:
        return self.request("POST", path, body)

    def row(self, path: str) -> dict[str, Any]:
        """Return what `kubectl get -o wide` shows of one object, by column."""
        table = self.request("GET", path, accept=TABLE).body
        titles = [column["name"] for column in table["columnDefinitions"]]
        return dict(zip(titles, table["rows"][0]["cells"], strict=True))
