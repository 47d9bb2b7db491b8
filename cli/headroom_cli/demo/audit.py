"""The API server's audit log: the calls of each user since a mark."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True, slots=True)
class Call:
    """One finished request."""

    user: str
    verb: str
    resource: str
    name: str
    status: int


class AuditLog:
    """Calls that were logged since this object was made, or since `mark`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.mark()

    def mark(self) -> None:
        """Leave out the calls that are in the log so far."""
        self._offset = self._path.stat().st_size

    def calls(self, user: str) -> Iterator[Call]:
        """Yield the finished calls of a user since the mark, in the order of the log."""
        with self._path.open("rb") as log:
            log.seek(self._offset)
            for line in log:
                if not line.endswith(b"\n"):
                    return
                call = _parse(line)
                if call is not None and call.user == user:
                    yield call

    def writes(self, user: str) -> list[Call]:
        """Return the calls of a user with a writing verb; reviews of rights and Leases are left out."""
        return [
            call
            for call in self.calls(user)
            if call.verb in WRITES and not call.resource.endswith(("reviews", "leases"))
        ]


def _parse(line: bytes) -> Call | None:
    entry = json.loads(line)
    if entry.get("stage") != "ResponseComplete":
        return None
    target = entry.get("objectRef") or {}
    resource = "/".join(part for part in (target.get("resource", ""), target.get("subresource", "")) if part)
    return Call(
        user=entry.get("user", {}).get("username", ""),
        verb=entry.get("verb", ""),
        resource=resource,
        name=target.get("name", ""),
        status=int((entry.get("responseStatus") or {}).get("code", 0)),
    )
