"""ServiceAccount tokens for a pod's projected volumes: asked for once, renewed well before they expire."""

import time
from typing import Final

from local_cluster.node.api import Api
from local_cluster.node.objects import Json
from local_cluster.node.volumes import token_projections

_DEFAULT_LIFETIME_S: Final = 3600
#: A token is renewed when this part of its life is over, as a kubelet does.
_RENEW_AT: Final = 0.8


class Tokens:
    """The tokens of one pod; call `refresh` before `of`."""

    def __init__(self, api: Api, pod: Json) -> None:
        self._api = api
        self._pod = pod
        self._held: dict[tuple[str, int], tuple[str, float]] = {}

    async def refresh(self) -> float:
        """Request missing and old tokens; return seconds until the next one has to be renewed.

        Raises:
            ApiError: the API server refused a token.
        """
        now = time.monotonic()
        for projection in token_projections(self._pod):
            key = _key(projection)
            if key not in self._held or self._held[key][1] <= now:
                self._held[key] = (await self._ask(*key), now + key[1] * _RENEW_AT)
        return min((renew_at - now for _, renew_at in self._held.values()), default=float("inf"))

    def of(self, projection: Json) -> str:
        """Return the token of a serviceAccountToken projection."""
        return self._held[_key(projection)][0]

    async def _ask(self, audience: str, lifetime_s: int) -> str:
        meta, spec = self._pod["metadata"], self._pod["spec"]
        account = spec.get("serviceAccountName", "default")
        path = f"/api/v1/namespaces/{meta['namespace']}/serviceaccounts/{account}/token"
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        wanted: Json = {"expirationSeconds": lifetime_s, "boundObjectRef": bound}
        if audience:
            wanted["audiences"] = [audience]
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": wanted}
        answer = await self._api.call("POST", path, body)
        return str(answer["status"]["token"])


def _key(projection: Json) -> tuple[str, int]:
    return projection.get("audience", ""), int(projection.get("expirationSeconds") or _DEFAULT_LIFETIME_S)
