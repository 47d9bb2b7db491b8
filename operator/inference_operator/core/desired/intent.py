"""An object that should exist. Pure."""

from dataclasses import dataclass

from inference_operator.core.kinds import Kind, Object


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """An object with exactly the fields that the operator owns; all others are left to other managers."""

    kind: Kind
    body: Object
    claimed: bool = False
    """Whether the object is first made by POST. If a user has just made one of that name, a POST fails
    with 409 AlreadyExists, where an apply would take it over."""

    @property
    def name(self) -> str:
        """The object's name."""
        return str(self.body["metadata"]["name"])


def intent(kind: Kind, metadata: Object, *, claimed: bool = False, **parts: object) -> Intent:
    """Return the intent of an object with these top-level parts."""
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **parts}
    return Intent(kind=kind, body=body, claimed=claimed)
