"""Which of several installations of the operator works in a namespace that more than one of them names. Pure.

Each installation keeps a Lease that says in which namespaces it works. Of two installations with a namespace
in common, the one whose Lease is older has it, and the younger writes nothing there. A Lease that is
not renewed counts for its duration on the reader's clock, so the clocks of two nodes are never compared.

An installation that takes over from a silent one writes the silent Lease's uid into its own Lease. The silent
installation, should it come back, finds its uid there, makes its Lease anew, and so is the younger one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from inference_operator.core.kinds import LEASE, Object
from inference_operator.core.settings import LONGEST_LEASE, SHORTEST_LEASE

RECORD_LABEL: Final = "headroom.dev/record"
"""Label of the Leases of operators; its value is RECORD_VALUE."""
RECORD_VALUE: Final = "operator"
NAMESPACES_ANNOTATION: Final = "headroom.dev/namespaces"
ROLE_ANNOTATION: Final = "headroom.dev/picker-cluster-role"
ACCOUNT_ANNOTATION: Final = "headroom.dev/service-account"
VERSION_ANNOTATION: Final = "headroom.dev/version"
SUPERSEDES_ANNOTATION: Final = "headroom.dev/supersedes"
ASIDE_ANNOTATION: Final = "headroom.dev/stands-aside"
ALL: Final = "*"
"""Value of NAMESPACES_ANNOTATION for an operator without --namespaces."""
MOST_RECORDS: Final = 256
"""Most Leases that are read: anybody who may create Leases can make records. The oldest are kept."""
_MOST_SUPERSEDED: Final = 32

#: Namespaces, sorted; empty means all.
Scope = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A Lease as its last renewal left it."""

    uid: str
    renewal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What the Lease of an installation says."""

    namespace: str
    name: str
    uid: str = ""
    """Empty while the installation has no Lease."""
    created: str = ""
    """Time of the Lease's creation by the API server's clock, RFC 3339; empty while there is none."""
    account: str = ""
    """Name of the operator's ServiceAccount, in the Lease's namespace."""
    scope: Scope = ()
    renewal: str = ""
    """Text that differs after each renewal."""
    duration: float = 60.0
    """Seconds without a renewal after which the installation no longer counts."""
    supersedes: frozenset[Mark] = frozenset()
    """Leases of silent installations that this one took over from."""

    @property
    def installation(self) -> str:
        """Namespace and name of the Lease: the identity of the installation."""
        return f"{self.namespace}/{self.name}"


def read_record(lease: Object) -> Record:
    """Return the record in a Lease. Anybody may have written it: what cannot be read takes its default."""
    metadata = lease["metadata"]
    notes = metadata.get("annotations") or {}
    spec = lease.get("spec") or {}
    return Record(
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        created=metadata.get("creationTimestamp", ""),
        account=str(notes.get(ACCOUNT_ANNOTATION, "")),
        scope=_read_scope(str(notes.get(NAMESPACES_ANNOTATION, ALL))),
        renewal=str(spec.get("renewTime", "")),
        duration=_read_seconds(spec.get("leaseDurationSeconds")),
        supersedes=_read_marks(str(notes.get(SUPERSEDES_ANNOTATION, ""))),
    )


def lease_body(mine: Record, aside: Mapping[str, Scope], *, role: str, version: str, holder: str) -> Object:
    """Return the Lease to write. `aside` is what `Standing.aside` was at the last look."""
    return {
        "apiVersion": LEASE.api_version,
        "kind": LEASE.kind,
        "metadata": {
            "name": mine.name,
            "namespace": mine.namespace,
            "labels": {RECORD_LABEL: RECORD_VALUE, "app.kubernetes.io/part-of": "headroom"},
            "annotations": {
                NAMESPACES_ANNOTATION: ",".join(mine.scope) or ALL,
                ROLE_ANNOTATION: role,
                ACCOUNT_ANNOTATION: mine.account,
                VERSION_ANNOTATION: version,
                SUPERSEDES_ANNOTATION: ",".join(
                    f"{mark.uid}@{mark.renewal}" for mark in sorted(mine.supersedes, key=lambda m: m.uid)
                ),
                ASIDE_ANNOTATION: "; ".join(
                    f"{in_words(scope)}: {other}" for other, scope in sorted(aside.items())
                ),
            },
        },
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": round(mine.duration),
            "renewTime": mine.renewal,
        },
    }


def in_words(scope: Scope) -> str:
    """Return the namespaces for a message."""
    return ", ".join(scope) or "all namespaces"


def shared(one: Scope, other: Scope) -> Scope | None:
    """Return the namespaces that both scopes have; None when they have none in common."""
    if not one or not other:
        return one or other
    return tuple(sorted(set(one) & set(other))) or None


def widens(now: Scope, before: Scope) -> bool:
    """Return whether a scope has a namespace that an earlier one had not."""
    return bool(before) and (not now or not set(now) <= set(before))


def outranks(other: Record, mine: Record, trusted: frozenset[str]) -> bool:
    """Return whether the other installation goes first where both work.

    `trusted` are uids from `mine.supersedes` whose Leases were read again, unchanged, after `mine` was
    written.
    """
    if is_superseded(mine, (other,)):
        return True
    if other.uid in trusted:
        return False
    if not mine.created:
        return True
    return (other.created, other.uid) < (mine.created, mine.uid)


def is_superseded(mine: Record, others: Iterable[Record]) -> bool:
    """Return whether another installation has taken over from this one."""
    return bool(mine.uid) and any(mark.uid == mine.uid for other in others for mark in other.supersedes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where an installation must not write, and where another one stands aside for it."""

    aside: Mapping[str, Scope] = field(default_factory=dict)
    """Older installations, each with the namespaces that are left to it."""
    younger: Mapping[str, Scope] = field(default_factory=dict)
    """Younger installations, each with the namespaces in common."""

    def owner(self, namespace: str) -> str:
        """Return the older installation that works in the namespace; "" when there is none."""
        for other, scope in sorted(self.aside.items()):
            if not scope or namespace in scope:
                return other
        return ""


def stand(mine: Record, others: Iterable[Record], trusted: frozenset[str] = frozenset()) -> Standing:
    """Return the standing among other installations that are alive and may write where they say they work."""
    aside: dict[str, Scope] = {}
    younger: dict[str, Scope] = {}
    for other in others:
        common = shared(mine.scope, other.scope)
        if common is not None:
            (aside if outranks(other, mine, trusted) else younger)[other.installation] = common
    return Standing(aside=aside, younger=younger)


def marks_to_write(mine: Record, present: Iterable[Record], silent: Iterable[Record]) -> frozenset[Mark]:
    """Return the marks for `mine.supersedes`.

    Kept are those of Leases that exist. Added are those of silent installations that outrank this one where
    both work.
    """
    uids = {record.uid for record in present}
    kept = {mark for mark in mine.supersedes if mark.uid in uids}
    marked = {mark.uid for mark in kept}
    added = [
        Mark(uid=each.uid, renewal=each.renewal)
        for each in silent
        if each.uid in uids - marked and shared(mine.scope, each.scope) is not None
        if outranks(each, mine, frozenset())
    ]
    return frozenset([*kept, *added][:_MOST_SUPERSEDED])


def unchanged(marks: Iterable[Mark], present: Iterable[Record]) -> frozenset[str]:
    """Return the uids of the marks whose Leases stand as they were marked."""
    stand_now = {record.uid: record.renewal for record in present}
    return frozenset(mark.uid for mark in marks if stand_now.get(mark.uid) == mark.renewal)


class Sightings:
    """When each installation was last heard of. A deleted Lease counts until its duration is over.

    Time in which this reader read nothing does not count: after an outage of the API server all start anew.
    """

    __slots__ = ("_read", "_seen")

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Record, float]] = {}
        self._read = 0.0

    def see(self, records: Iterable[Record], now: float) -> None:
        """Take in a full list of the other installations' records, read at `now` in seconds."""
        present = {record.installation: record for record in records}
        for installation, record in present.items():
            held = self._seen.get(installation)
            is_news = held is None or (held[0].uid, held[0].renewal) != (record.uid, record.renewal)
            is_blind = now - self._read > record.duration / 2
            self._seen[installation] = record, now if held is None or is_news or is_blind else held[1]
        for installation in self._seen.keys() - present.keys():
            record, at = self._seen[installation]
            if now - at >= record.duration:
                del self._seen[installation]
        self._read = now

    def alive(self, now: float) -> list[Record]:
        """Return the records that were renewed within their duration."""
        return [record for record, at in self._seen.values() if now - at < record.duration]

    def silent(self, now: float) -> list[Record]:
        """Return the records that were not."""
        return [record for record, at in self._seen.values() if now - at >= record.duration]


def renewed(mine: Record, renewal: str, supersedes: frozenset[Mark]) -> Record:
    """Return the record as the next renewal writes it."""
    return replace(mine, renewal=renewal, supersedes=supersedes)


def _read_scope(text: str) -> Scope:
    names = {name.strip() for name in text.split(",")} - {""}
    return () if ALL in names or not names else tuple(sorted(names))


def _read_seconds(value: object) -> float:
    seconds = float(value) if isinstance(value, int) else 60.0
    return min(LONGEST_LEASE, max(SHORTEST_LEASE, seconds))


def _read_marks(text: str) -> frozenset[Mark]:
    parts = [part.partition("@") for part in text.split(",")[:_MOST_SUPERSEDED]]
    return frozenset(Mark(uid=uid, renewal=renewal) for uid, _, renewal in parts if uid)


def owned_by(record: Record) -> tuple[str, list[str]]:
    """Return user name and groups of the record's ServiceAccount."""
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{record.namespace}", "system:authenticated"]
    return f"system:serviceaccount:{record.namespace}:{record.account}", groups


def oldest(leases: Iterable[Any]) -> list[Record]:
    """Return the MOST_RECORDS oldest records of these Leases."""
    return sorted((read_record(lease) for lease in leases), key=lambda each: each.created)[:MOST_RECORDS]
