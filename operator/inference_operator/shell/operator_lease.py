"""The Lease of this installation: renewed, compared with those of other installations (`core/overlap.py`).

Each look writes before it reads, so that of two installations that start together at least one sees the
other. Passes wait for the first look, and again once the Lease could not be renewed for `_LAPSE` of its
duration: another installation may take over after the whole duration.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from inference_operator.core import overlap, reasons
from inference_operator.core.kinds import EVENT, LEASE, Object
from inference_operator.core.naming import FIELD_MANAGER
from inference_operator.core.overlap import Record, Scope, Sightings, Standing
from inference_operator.core.reasons import Finding
from inference_operator.core.settings import Settings
from inference_operator.shell import metrics
from inference_operator.shell.api import Api, ApiError, ApiUnavailable
from inference_operator.shell.supervision import Clock

log = logging.getLogger(__name__)

#: Parts of the Lease's duration: between two looks, at most for one look, and until passes wait.
_LOOK: Final = 1 / 3
_LIMIT: Final = 1 / 3
_LAPSE: Final = 2 / 3
#: Seconds between the making of a Lease and the first look: the times at which Leases are made have whole
#: seconds, and two Leases of the same second must be seen by both.
_SETTLE: Final = 2.0
#: Back-off, in seconds, of looks that failed.
_RETRY: Final = (0.5, 1.0, 2.0)
#: Most rounds of writing and reading in a look.
_ROUNDS: Final = 3
#: Most access reviews in a look; a record that was not reviewed counts.
_MOST_REVIEWS: Final = 32
_RECORDS: Final = f"{overlap.RECORD_LABEL}={overlap.RECORD_VALUE}"
#: Namespace and ServiceAccount of an installation whose user is not a ServiceAccount.
_OUTSIDE_NAMESPACE: Final = "headroom-system"
_OUTSIDE_ACCOUNT: Final = "headroom-operator"


@dataclass(frozen=True, slots=True)
class Process:
    """Facts about this process that other installations can read in its Lease."""

    host: str
    """Name of the pod, or of the machine outside of a cluster."""
    version: str


class OperatorLease:
    """Keeps the Lease; says in which namespaces another installation works. `run` is a background part."""

    def __init__(self, api: Api, settings: Settings, process: Process, clock: Clock | None = None) -> None:
        """Call it in the event loop that will run it."""
        self._api = api
        self._settings = settings
        self._process = process
        self._clock = clock or asyncio.get_running_loop().time
        self._mine: Record | None = None
        self._sightings = Sightings()
        self._trusted: frozenset[str] = frozenset()
        self._standing = Standing()
        self._renewed: float | None = None
        self._looked = asyncio.Event()
        self._problems: dict[str, str] = {}
        self.on_change: Callable[[], None] = lambda: None
        """Called after a look that changed the standing."""

    @property
    def standing(self) -> Standing:
        """The standing of the last look."""
        return self._standing

    @property
    def problem(self) -> str:
        """Why other installations are not seen, or do not see this one; "" when there is no reason."""
        return "; ".join(problem for problem in self._problems.values() if problem)

    @property
    def installation(self) -> str:
        """Namespace and name of the Lease; "" before the first look."""
        return "" if self._mine is None else self._mine.installation

    def owner(self, namespace: str) -> str:
        """Return the older installation that works in the namespace; "" when there is none."""
        return self._standing.owner(namespace)

    async def wait(self) -> None:
        """Wait until the standing is known and current."""
        await self._looked.wait()

    async def run(self) -> None:
        """Look for ever."""
        failures = 0
        pause = self._settings.lease_duration * _LOOK
        while True:
            try:
                async with asyncio.timeout(max(_SETTLE + 1.0, self._settings.lease_duration * _LIMIT)):
                    await self.look()
                failures = 0
                self._looked.set()
                await asyncio.sleep(pause)
                continue
            except (ApiUnavailable, ApiError, TimeoutError) as error:
                why = str(error) or "it took too long"
            back_off = _RETRY[min(failures, len(_RETRY) - 1)]
            failures += 1
            log.warning("the operator's Lease was not renewed: %s", why, extra={"again_in_seconds": back_off})
            since = self._renewed
            if since is None or self._clock() - since >= self._settings.lease_duration * _LAPSE - back_off:
                self._looked.clear()
            await asyncio.sleep(back_off)

    async def look(self) -> None:
        """Renew the Lease, read all others, and decide. Raises ApiUnavailable and ApiError."""
        mine = self._mine or await self._identify()
        for _ in range(_ROUNDS):
            began = self._clock()
            mine = self._mine = await self._renew(mine)
            others = await self._others(mine)
            self._sightings.see(others, self._clock())
            alive = await self._credible(mine, self._sightings.alive(self._clock()))
            if overlap.is_superseded(mine, alive):
                log.warning("another operator took over while this one was silent: its Lease is made anew")
                await self._delete(mine)
                mine = self._mine = replace(mine, uid="", created="", supersedes=frozenset())
                continue
            self._trusted &= {mark.uid for mark in mine.supersedes}
            self._trusted |= overlap.unchanged(mine.supersedes, others)
            sure = frozenset(mark for mark in mine.supersedes if mark.uid in self._trusted)
            silent = self._sightings.silent(self._clock())
            marks = overlap.marks_to_write(replace(mine, supersedes=sure), others, silent)
            if marks == mine.supersedes:
                self._renewed = began
                await self._conclude(overlap.stand(mine, alive, self._trusted))
                return
            mine = self._mine = replace(mine, supersedes=marks)
        raise ApiUnavailable("the Leases of other operators change too often")

    async def _identify(self) -> Record:
        try:
            user = await self._api.user_name()
        except ApiError:
            user = ""
        match user.split(":"):
            case ["system", "serviceaccount", namespace, account]:
                name = account
            case _:
                namespace, account = _OUTSIDE_NAMESPACE, _OUTSIDE_ACCOUNT
                name = f"{account}-at-{_name_part(self._process.host)}"
        scope, duration = self._settings.namespaces, self._settings.lease_duration
        return Record(namespace=namespace, name=name, account=account, scope=scope, duration=duration)

    async def _renew(self, mine: Record) -> Record:
        """Write the Lease, and return the record with the Lease's uid and time of creation."""
        try:
            if not mine.uid:
                mine = await self._adopt(mine)
            mine = replace(mine, renewal=_wall_time())
            written = await (self._merge(mine) if mine.uid else self._create(mine))
        except ApiError as error:
            if error.status not in {403, 404}:
                raise
            self._note_problem("unseen", reasons.LEASE_NOT_WRITTEN.say(message=error.message).message)
            return replace(mine, uid="", created="")
        self._note_problem("unseen", "")
        metadata = written["metadata"]
        return replace(mine, uid=metadata["uid"], created=metadata.get("creationTimestamp", ""))

    async def _adopt(self, mine: Record) -> Record:
        """Go on with the Lease that an earlier process of this installation left.

        One that names fewer namespaces is deleted: in those that are new, others may have worked for longer.
        """
        live = await self._api.get(LEASE, mine.namespace, mine.name)
        if live is None:
            return mine
        held = overlap.read_record(live)
        if overlap.widens(mine.scope, held.scope):
            await self._delete(held)
            return mine
        return replace(mine, uid=held.uid, created=held.created, supersedes=held.supersedes)

    async def _merge(self, mine: Record) -> Object:
        body = self._body(mine)
        body["metadata"]["uid"] = mine.uid
        try:
            return await self._api.merge(LEASE, mine.namespace, mine.name, body)
        except ApiError as error:
            if error.status not in {404, 409}:
                raise
            self._looked.clear()
            self._mine = replace(mine, uid="", created="")
            raise ApiUnavailable("it was deleted or replaced") from None

    async def _create(self, mine: Record) -> Object:
        self._looked.clear()
        made = await self._api.create(LEASE, self._body(mine), FIELD_MANAGER)
        await asyncio.sleep(_SETTLE)
        return made

    def _body(self, mine: Record) -> Object:
        return overlap.lease_body(
            mine,
            self._standing.aside,
            role=self._settings.picker_cluster_role,
            version=self._process.version,
            holder=self._process.host,
        )

    async def _delete(self, mine: Record) -> None:
        self._looked.clear()
        await self._api.delete(
            LEASE, {"metadata": {"namespace": mine.namespace, "name": mine.name, "uid": mine.uid}}
        )

    async def _others(self, mine: Record) -> list[Record]:
        try:
            leases, _ = await self._api.list_all(LEASE, None, _RECORDS)
        except ApiError as error:
            if error.status != 403:
                raise
            self._note_problem("blind", reasons.LEASES_NOT_READ.say(message=error.message).message)
            return []
        self._note_problem("blind", "")
        return [each for each in overlap.oldest(leases) if each.installation != mine.installation]

    async def _credible(self, mine: Record, records: list[Record]) -> list[Record]:
        """Return the records that share namespaces, each with those in which its ServiceAccount may write.

        Anybody who may create a Lease anywhere can write a record. It counts where its ServiceAccount, which
        is of the Lease's own namespace, may create Deployments.
        """
        found: list[Record] = []
        reviews = 0
        for record in records:
            common = overlap.shared(mine.scope, record.scope)
            if common is None:
                continue
            allowed: list[str] = []
            for space in common or (None,):
                reviews += 1
                if reviews > _MOST_REVIEWS or await self._api.others_may(
                    "create", "apps", "deployments", space, *overlap.owned_by(record)
                ):
                    allowed.append(space or "")
            if allowed:
                found.append(replace(record, scope=() if allowed == [""] else tuple(allowed)))
        return found

    async def _conclude(self, standing: Standing) -> None:
        before, self._standing = self._standing, standing
        metrics.STANDS_ASIDE.set(len(standing.aside))
        metrics.YOUNGER_OPERATORS.set(len(standing.younger))
        if standing == before:
            return
        for other, scope in standing.aside.items():
            if before.aside.get(other) != scope:
                await self._say(reasons.STANDS_ASIDE, other, scope)
        for other, scope in standing.younger.items():
            if before.younger.get(other) != scope:
                await self._say(reasons.YOUNGER_STANDS_ASIDE, other, scope)
        for other, scope in before.aside.items():
            if other not in standing.aside:
                await self._say(reasons.NO_LONGER_ASIDE, other, scope)
        self.on_change()

    async def _say(self, reason: reasons.Reason, other: str, scope: Scope) -> None:
        finding = reason.say(other=other, namespaces=overlap.in_words(scope))
        level = logging.INFO if reason is reasons.NO_LONGER_ASIDE else logging.WARNING
        log.log(level, "%s", finding.message, extra={"reason": finding.reason, "other": other})
        mine = self._mine
        if mine is not None and mine.uid:
            with suppress(ApiError):  # the log has it, too
                await self._api.create(EVENT, _event_body(mine, finding, level), FIELD_MANAGER)

    def _note_problem(self, kind: str, problem: str) -> None:
        if problem and problem != self._problems.get(kind):
            log.warning("%s", problem)
        self._problems[kind] = problem


def _event_body(mine: Record, finding: Finding, level: int) -> Object:
    now = datetime.now(UTC).replace(microsecond=0).isoformat().replace("+00:00", "Z")
    mark = sha256(f"{mine.renewal} {finding.reason} {finding.message}".encode()).hexdigest()[:16]
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"name": f"{mine.name[:200]}.{mark}", "namespace": mine.namespace},
        "involvedObject": {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "name": mine.name,
            "namespace": mine.namespace,
            "uid": mine.uid,
        },
        "reason": finding.reason,
        "message": finding.message[:1000],
        "type": "Normal" if level == logging.INFO else "Warning",
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def _wall_time() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _name_part(host: str) -> str:
    kept = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in host.lower())
    return kept.strip("-")[:40].strip("-") or "unknown"
