"""Calls to the Kubernetes API server: all but the requests of kopf's watches. A thin shell over `Connection`.

Objects are plain JSON. A refusal raises ApiError with the server's message. ApiUnavailable is raised when the
API server does not answer, and for 401, 429 and statuses above 500.
"""

import json
from collections.abc import AsyncGenerator
from typing import Any, Final

import aiohttp

from inference_operator.core.kinds import Kind, Object
from inference_operator.shell.connection import Connection

_JSON: Final = "application/json"
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"
_PAGE: Final = 500
_TIMEOUT_SECONDS: Final = 30
_UNKNOWN_TO_IT: Final = (
    "the token is not valid: if the operator's ServiceAccount was deleted, apply manifests/base again and "
    "delete the operator's pod"
)


class ApiError(Exception):
    """A refusal: HTTP status, and reason, message and causes' reasons of the Status object."""

    def __init__(self, status: int, reason: str, message: str, causes: frozenset[str] = frozenset()) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.causes = causes

    @property
    def namespace_terminating(self) -> bool:
        """Whether a creation was refused because the namespace is being deleted."""
        return self.status == 403 and "NamespaceTerminating" in self.causes


class ApiUnavailable(Exception):  # noqa: N818 - a state of the world, not an error in the program
    """The API server did not answer, is overloaded or failing, or does not know the token."""


class Api:
    """Verbs on objects. Close it when done."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def close(self) -> None:
        """Close all connections."""
        await self._connection.close()

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return the object, or None when there is none."""
        try:
            return await self._call("GET", kind.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list_all(
        self, kind: Kind, namespace: str | None = None, selector: str = "", *, cached: bool = False
    ) -> tuple[list[Object], int]:
        """Return all objects and the version at which the list was read.

        `cached` sends resourceVersion=0: the API server answers cheaply from its cache, which may be a moment
        old.
        """
        items: list[Object] = []
        query: dict[str, str] = {"labelSelector": selector} if selector else {}
        query |= {"resourceVersion": "0"} if cached else {"limit": str(_PAGE)}
        while True:
            page = await self._call("GET", kind.path(namespace), query=query)
            items.extend(
                {"apiVersion": kind.api_version, "kind": kind.kind, **item}
                for item in page.get("items") or ()
            )
            metadata = page.get("metadata", {})
            if not (more := metadata.get("continue")):
                version = metadata.get("resourceVersion", "")
                return items, int(version) if version.isdecimal() else 0
            query["continue"] = more

    async def watch(
        self, kind: Kind, namespace: str, selector: str, version: int, seconds: int
    ) -> AsyncGenerator[tuple[str, Object], None]:
        """Yield changes after that version, as ADDED, MODIFIED or DELETED with the object.

        A BOOKMARK comes about once a minute, which shows that the stream works; its object has only a
        version. The API server ends the stream after about `seconds`. Raises ApiUnavailable; and ApiError,
        also when the version is too old.
        """
        query = {
            "watch": "true",
            "labelSelector": selector,
            "resourceVersion": str(version),
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        try:
            async for line in self._connection.stream(
                kind.path(namespace), query, seconds + _TIMEOUT_SECONDS
            ):
                event = _decode(line)
                if event.get("kind") == "Status":
                    raise _refusal(int(event.get("code", 0)), event)
                what, body = event.get("type", ""), event.get("object", {})
                if what == "ERROR":
                    raise _refusal(int(body.get("code", 0)), body)
                if what in {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}:
                    yield what, body
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiUnavailable(f"watch {kind.resource}: {str(error) or type(error).__name__}") from None

    async def create(self, kind: Kind, body: Object, manager: str, *, dry_run: bool = False) -> Object:
        """Create the object; with `dry_run`, only check whether the API server would.

        Raises ApiError 409 AlreadyExists when there is one of that name.
        """
        namespace = body.get("metadata", {}).get("namespace")
        query = {"fieldManager": manager} | ({"dryRun": "All"} if dry_run else {})
        return await self._call("POST", kind.path(namespace), query=query, body=body)

    async def apply(
        self, kind: Kind, body: Object, manager: str, *, force: bool, subresource: str = ""
    ) -> Object:
        """Apply server-side. Without `force`, raises ApiError 409 Conflict if others own a field."""
        metadata = body["metadata"]
        return await self._call(
            "PATCH",
            kind.path(metadata.get("namespace"), metadata["name"], subresource),
            query={"fieldManager": manager, "force": "true" if force else "false"},
            body=body,
            content_type=_APPLY,
        )

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Object) -> Object:
        """Send a JSON merge patch."""
        return await self._call("PATCH", kind.path(namespace, name), body=patch, content_type=_MERGE)

    async def edit(self, kind: Kind, namespace: str, name: str, steps: list[Object], manager: str) -> Object:
        """Send a JSON patch; the API server does all its steps or none."""
        return await self._call(
            "PATCH",
            kind.path(namespace, name),
            query={"fieldManager": manager},
            body=steps,
            content_type=_JSON_PATCH,
        )

    async def replace_status(self, kind: Kind, body: Object, manager: str) -> Object:
        """PUT the whole status; raises ApiError 409 when the object has changed since it was read."""
        metadata = body["metadata"]
        path = kind.path(metadata["namespace"], metadata["name"], "status")
        return await self._call("PUT", path, query={"fieldManager": manager}, body=body)

    async def delete(self, kind: Kind, body: Object) -> None:
        """Delete the object with this uid; no error when it is gone or has a successor of its name."""
        metadata = body["metadata"]
        options = {"preconditions": {"uid": metadata["uid"]}, "propagationPolicy": "Background"}
        try:
            await self._call("DELETE", kind.path(metadata["namespace"], metadata["name"]), body=options)
        except ApiError as error:
            if error.status not in {404, 409}:
                raise

    async def may(self, kind: Kind, verb: str, namespace: str | None, subresource: str = "") -> bool:
        """Return whether the operator has this right (SelfSubjectAccessReview)."""
        attributes = {"group": kind.group, "resource": kind.plural, "verb": verb, "subresource": subresource}
        if namespace:
            attributes["namespace"] = namespace
        answer = await self._call(
            "POST",
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            body={
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            },
        )
        return bool(answer.get("status", {}).get("allowed"))

    async def others_may(
        self, verb: str, group: str, plural: str, namespace: str | None, user: str, groups: list[str]
    ) -> bool:
        """Return whether another user has this right (SubjectAccessReview); None is the whole cluster."""
        attributes = {"group": group, "resource": plural, "verb": verb}
        if namespace:
            attributes["namespace"] = namespace
        answer = await self._call(
            "POST",
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            body={
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {"user": user, "groups": groups, "resourceAttributes": attributes},
            },
        )
        return bool(answer.get("status", {}).get("allowed"))

    async def user_name(self) -> str:
        """Return the name by which the API server knows the operator (SelfSubjectReview)."""
        answer = await self._call(
            "POST",
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            body={"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
        )
        return str(answer.get("status", {}).get("userInfo", {}).get("username", ""))

    async def served(self, group: str, version: str) -> frozenset[str]:
        """Return the plurals that the API server serves of a group and version; empty when it serves none."""
        try:
            found = await self._call("GET", f"/apis/{group}/{version}" if group else f"/api/{version}")
        except ApiError as error:
            if error.status == 404:
                return frozenset()
            raise
        return frozenset(item["name"] for item in found.get("resources", ()))

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Any = None,
        content_type: str = _JSON,
    ) -> Object:
        try:
            status, payload = await self._connection.request(
                method, path, query or {}, body, content_type, _TIMEOUT_SECONDS
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiUnavailable(f"{method} {path}: {str(error) or type(error).__name__}") from None
        answer = _decode(payload)
        if status == 401:
            raise ApiUnavailable(f"{method} {path}: {status}, {_UNKNOWN_TO_IT}")
        # 500 is a refusal of this one request, as when an admission webhook does not answer: not unavailable.
        if status == 429 or status > 500:
            raise ApiUnavailable(f"{method} {path}: {status} {answer.get('message', '')}")
        if status >= 400:
            raise _refusal(status, answer)
        return answer


def _refusal(status: int, answer: Object) -> ApiError:
    details = answer.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    words = frozenset(str(cause.get("reason", "")) for cause in causes or () if isinstance(cause, dict))
    return ApiError(status, str(answer.get("reason", "")), str(answer.get("message", "")), words)


def _decode(payload: bytes) -> Object:
    try:
        answer: Any = json.loads(payload) if payload else {}
    except ValueError:
        answer = {"message": payload[:300].decode(errors="replace")}
    return answer if isinstance(answer, dict) else {}
