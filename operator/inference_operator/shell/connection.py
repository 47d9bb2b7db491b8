"""Connection to the API server, by the pod's ServiceAccount or a kubeconfig file.

The only module that imports kubernetes.aio, which is untyped.
"""

from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import kopf
from kubernetes.aio import client, config

from inference_operator.shell.kubeconfig import read_kubeconfig


class ConnectionProblem(Exception):  # noqa: N818 - its message is for the user
    """Neither a kubeconfig nor a ServiceAccount can be used; the message says what to do."""


class Connection:
    """One API server, with credentials. A ServiceAccount's token is read again before it expires."""

    __slots__ = ("_client", "_configuration", "_held")

    def __init__(self, configuration: Any, held: ExitStack) -> None:
        # Memory files with the certificates that a kubeconfig embeds: each new TLS connection loads them.
        self._held = held
        # No retries inside the client: callers decide about failed calls, and back off.
        configuration.retries = None
        # 0: no limit. The watch of pods holds a stream for each namespace, and these could use up a limit.
        configuration.connection_pool_maxsize = 0
        self._configuration = configuration
        self._client = client.ApiClient(configuration)
        self._client.user_agent = "headroom-operator"

    @classmethod
    async def open(cls, kubeconfig: str) -> Self:
        """Connect with that kubeconfig file, or as the pod's ServiceAccount when it is empty.

        Raises ConnectionProblem when neither works.
        """
        configuration = client.Configuration()
        held = ExitStack()
        try:
            if kubeconfig:
                content = read_kubeconfig(Path(kubeconfig), held)
                await config.load_kube_config_from_dict(content, client_configuration=configuration)
            else:
                config.load_incluster_config(configuration)
        except (config.ConfigException, OSError, ValueError) as error:
            held.close()
            if kubeconfig:
                raise ConnectionProblem(f"--kubeconfig {kubeconfig} cannot be used: {error}") from None
            advice = "run in a pod with a ServiceAccount, or pass --kubeconfig FILE"
            raise ConnectionProblem(f"no API server to talk to: {error} ({advice})") from None
        return cls(configuration, held)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()
        self._held.close()

    async def request(
        self, method: str, path: str, query: dict[str, str], body: Any, content_type: str, seconds: float
    ) -> tuple[int, bytes]:
        """Send one request; return status and body, whatever the status is."""
        prepared = await self._client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params={"Content-Type": content_type, "Accept": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
        )
        response = await self._client.call_api(*prepared, _request_timeout=seconds)
        return response.status, await response.read()

    async def stream(self, path: str, query: dict[str, str], seconds: float) -> AsyncIterator[bytes]:
        """Send a GET and yield the lines of its answer, for at most that many seconds.

        When the API server refuses, the only line is a JSON Status.
        """
        prepared = await self._client.param_serialize(
            "GET",
            path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        answer = (await self._client.call_api(*prepared, _request_timeout=seconds)).response
        try:
            async for line in answer.content:
                yield line
        finally:
            answer.close()

    async def for_kopf(self) -> kopf.ConnectionInfo:
        """Return the connection as kopf's type, with the present token."""
        held = self._configuration
        header = (await held.auth_settings()).get("BearerToken", {}).get("value", "")
        scheme, _, token = header.partition(" ")
        return kopf.ConnectionInfo(
            server=held.host,
            ca_path=held.ssl_ca_cert or None,
            ca_data=held.ca_cert_data or None,
            insecure=not held.verify_ssl,
            scheme=scheme.capitalize() or None,
            token=token or None,
            certificate_path=held.cert_file or None,
            private_key_path=held.key_file or None,
        )
