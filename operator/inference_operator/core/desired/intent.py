"""An object that should exist. Pure."""

from dataclasses import dataclass

from inference_operator.core.kinds import Kind, Object


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """An object with exactly the fields that we mean; what it does not name is left to others."""

    kind: Kind
    body: Object
    claimed: bool = False
    """Made by POST the first time, so that an object of the same name that a user makes at the same moment
    is found out instead of taken over."""

    @property
    def name(self) -> str:
        """The object's name."""
        return str(self.body["metadata"]["name"])


def intent(kind: Kind, metadata: Object, *, claimed: bool = False, **parts: object) -> Intent:
    """Return the intent of an object with these top-level parts."""
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **parts}
    return Intent(kind=kind, body=body, claimed=claimed)
