"""Making the cluster what the plan says: writes only where something differs."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inference_operator import metrics, reasons
from inference_operator.api import Api, ApiError
from inference_operator.cache import Cache
from inference_operator.desired.intent import Intent
from inference_operator.drift import drift, owned_fields
from inference_operator.kinds import PICKER, POOL, SERVICE, Kind, Object, PoolKey
from inference_operator.naming import FIELD_MANAGER, pool_of
from inference_operator.observation import ChildKey, Failure, Observation
from inference_operator.reasons import Finding

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Outcome:
    """What a pass did."""

    failures: list[Failure] = field(default_factory=list)
    changed: dict[ChildKey, Object] = field(default_factory=dict)
    """The new versions of the objects that were written."""
    healed: list[Finding] = field(default_factory=list)
    """What was repaired of a picker that had been complete before."""
    lost_claim: bool = False
    """Somebody else made the Service first: look again before doing anything more."""


class Applier:
    """Carries out a plan."""

    __slots__ = ("_api", "_cache", "_kept")

    def __init__(self, api: Api, cache: Cache) -> None:
        self._api = api
        self._cache = cache
        # The intents that were last found or made true: drift from one of these is damage, not a new wish.
        self._kept: dict[PoolKey, dict[ChildKey, Object]] = {}

    def forget(self, key: PoolKey) -> None:
        """The pool is gone."""
        self._kept.pop(key, None)

    async def carry_out(self, seen: Observation, intents: Sequence[Intent]) -> Outcome:
        """Apply, in order, every intent from which the live object has drifted.

        A refusal is noted and the rest goes on; ApiUnavailable is raised.
        """
        outcome = Outcome()
        kept = self._kept.setdefault(seen.key, {})
        for intent in intents:
            if intent.kind in seen.access.blind:
                continue
            live = self._live(seen, intent)
            moved = "missing" if live is None else drift(intent.body, live, FIELD_MANAGER)
            if moved is None:
                kept[intent.kind, intent.name] = intent.body
                continue
            try:
                if live is None and not intent.claimed and (owner := await self._taken(seen, intent)):
                    # What comes next would use it: another's account, another's configuration.
                    outcome.failures.append(Failure(kind=intent.kind, name=intent.name, finding=owner))
                    break
                await self._write(intent, live, outcome)
            except ApiError as error:
                outcome.failures.append(_failure(intent, error))
                _log_refusal(seen, intent, error)
                if intent.kind is SERVICE and live is None:
                    break
                continue
            if outcome.lost_claim:
                break
            action = "made" if live is None else "applied"
            metrics.WRITES.labels(intent.kind.kind, "create" if live is None else "apply").inc()
            log.info(
                "%s %s",
                action,
                intent.kind.kind,
                extra={"pool": "/".join(seen.key), "object": intent.name, "drift": moved},
            )
            if kept.get((intent.kind, intent.name)) == intent.body:
                healed = "made again" if live is None else f"put right ({moved})"
                outcome.healed.append(
                    reasons.CHILD_HEALED.say(kind=intent.kind.kind, name=intent.name, action=healed)
                )
            kept[intent.kind, intent.name] = intent.body
        return outcome

    async def remove(self, seen: Observation, doomed: Mapping[ChildKey, Object]) -> list[Failure]:
        """Delete these objects of ours, each only if it is still the one that was seen."""
        failures = []
        for (kind, name), body in doomed.items():
            try:
                await self._api.delete(kind, body)
            except ApiError as error:
                failures.append(Failure(kind=kind, name=name, finding=_finding(kind, name, error)))
                continue
            metrics.WRITES.labels(kind.kind, "delete").inc()
            log.info("removed %s", kind.kind, extra={"pool": "/".join(seen.key), "object": name})
            self._cache.forget(kind, seen.namespace, name)
            self._kept.get(seen.key, {}).pop((kind, name), None)
        return failures

    async def _taken(self, seen: Observation, intent: Intent) -> Finding | None:
        """Return why an object of that name is not to be forced: another pool's, or nothing of ours."""
        found = await self._api.get(intent.kind, seen.namespace, intent.name)
        if found is None or (owner := pool_of(found)) == seen.pool_name:
            return None
        if not owned_fields(found, FIELD_MANAGER):
            return reasons.NAME_TAKEN.say(kind=intent.kind.kind, name=intent.name)
        pool = self._cache.get(POOL, seen.namespace, owner)
        if pool is None or pool["metadata"].get("deletionTimestamp"):
            return None  # left behind by a pool that is gone
        return reasons.NAME_IN_USE.say(kind=intent.kind.kind, name=intent.name, other=owner)

    def _live(self, seen: Observation, intent: Intent) -> Object | None:
        if intent.kind is PICKER:
            return seen.picker_object
        if intent.kind is SERVICE and intent.name == seen.picker_name:
            return seen.service
        return seen.child(intent.kind, intent.name)

    async def _write(self, intent: Intent, live: Object | None, outcome: Outcome) -> None:
        if intent.claimed and live is None:
            try:
                await self._api.create(intent.kind, intent.body, FIELD_MANAGER)
            except ApiError as error:
                if error.status == 409 and error.reason == "AlreadyExists":
                    outcome.lost_claim = True
                    return
                raise
        written = await self._api.apply(intent.kind, intent.body, FIELD_MANAGER, force=True)
        if intent.claimed and live is None:
            written = await self._disown_creation(intent.kind, written)
        self._cache.put(intent.kind, written)
        outcome.changed[intent.kind, intent.name] = written
        if path := drift(intent.body, written, FIELD_MANAGER):
            finding = reasons.CHANGED_BACK.say(kind=intent.kind.kind, name=intent.name, path=path)
            outcome.failures.append(Failure(kind=intent.kind, name=intent.name, finding=finding))

    async def _disown_creation(self, kind: Kind, body: Object) -> Object:
        """Strike our POST from managedFields, or it would for ever own what a later apply leaves out."""
        metadata = body["metadata"]
        entries = metadata.get("managedFields", [])
        for index, entry in enumerate(entries):
            if entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Update":
                steps = [
                    {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
                    {"op": "remove", "path": f"/metadata/managedFields/{index}"},
                ]
                try:
                    return await self._api.edit(kind, metadata["namespace"], metadata["name"], steps)
                except ApiError as error:
                    # Somebody wrote in between; the leftover is harmless until a field leaves the intent.
                    log.debug("creation not struck: %s", error)
                    return body
        return body


def _finding(kind: Kind, name: str, error: ApiError) -> Finding:
    if error.status == 409 and error.reason == "Conflict":
        return reasons.FIELD_CONFLICT.say(kind=kind.kind, name=name, message=error.message)
    if error.status == 422 and "field is immutable" in error.message:
        return reasons.UNCHANGEABLE.say(kind=kind.kind, name=name, message=error.message)
    return reasons.APPLY_FAILED.say(kind=kind.kind, name=name, message=error.message or error.reason)


def _failure(intent: Intent, error: ApiError) -> Failure:
    return Failure(kind=intent.kind, name=intent.name, finding=_finding(intent.kind, intent.name, error))


def _log_refusal(seen: Observation, intent: Intent, error: ApiError) -> None:
    log.warning(
        "%s refused: %s",
        intent.kind.kind,
        error.message or error.reason,
        extra={"pool": "/".join(seen.key), "object": intent.name},
    )
