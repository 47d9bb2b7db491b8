"""Writing intents to the cluster, each only where the live object differs."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inference_operator.core import reasons
from inference_operator.core.cache import Cache
from inference_operator.core.desired.intent import Intent
from inference_operator.core.drift import as_applied, drift, owned_fields
from inference_operator.core.kinds import DEPLOYMENT, PICKER, POOL, SERVICE, Kind, Object, PoolKey
from inference_operator.core.naming import FIELD_MANAGER, pool_of
from inference_operator.core.observation import ChildKey, Failure, Observation
from inference_operator.core.obstacles import must_be_replaced, obstacles
from inference_operator.core.reasons import Finding
from inference_operator.shell import metrics
from inference_operator.shell.api import Api, ApiError

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Outcome:
    """Writes and failures of one pass."""

    failures: list[Failure] = field(default_factory=list)
    changed: dict[ChildKey, Object] = field(default_factory=dict)
    """The new versions of the objects that were written."""
    healed: list[Finding] = field(default_factory=list)
    """An event for each object that had its intent and was changed or deleted since."""
    stale: bool = False
    """Whether an object has changed since it was read, or was made by another client: the pass ends."""


class Applier:
    """Applies intents and removes objects."""

    __slots__ = ("_api", "_cache", "_kept")

    def __init__(self, api: Api, cache: Cache) -> None:
        self._api = api
        self._cache = cache
        # The intents that the live objects last had. Drift from the same intent is damage, and becomes an
        # event; drift from another intent is a new wish of the user.
        self._kept: dict[PoolKey, dict[ChildKey, Object]] = {}

    def forget(self, key: PoolKey) -> None:
        """Forget the intents of a pool that is gone."""
        self._kept.pop(key, None)

    async def carry_out(self, seen: Observation, intents: Sequence[Intent]) -> Outcome:
        """Apply, in order, every intent from which the live object has drifted.

        A refusal becomes a failure in the outcome, and most refusals let the next intents go on. Raises
        ApiUnavailable.
        """
        outcome = Outcome()
        for intent in intents:
            if seen.access.lacks(intent.kind):
                continue  # ResolvedRefs says so
            if intent.kind in seen.access.blind or self._held_back(intent, seen, outcome):
                continue
            try:
                go_on = await self._carry_out_one(seen, intent, outcome)
            except ApiError as error:
                go_on = self._refused(seen, intent, error, outcome)
            if not go_on:
                break
        return outcome

    def _held_back(self, intent: Intent, seen: Observation, outcome: Outcome) -> bool:
        """Return whether a live Deployment must not be changed, because a Service was refused.

        A roll-out would give it pods that listen on ports which no Service has.
        """
        refused = any(failure.kind is SERVICE for failure in outcome.failures)
        return intent.kind is DEPLOYMENT and refused and self._live(seen, intent) is not None

    async def _carry_out_one(self, seen: Observation, intent: Intent, outcome: Outcome) -> bool:
        """Apply one intent where the live object differs; return whether to go on with the next one."""
        kept = self._kept.setdefault(seen.key, {})
        live = self._live(seen, intent)
        if live is not None:
            live = await self._own_by_apply(intent, live, outcome)
        moved = "missing" if live is None else drift(intent.body, live, FIELD_MANAGER)
        if moved is None:
            kept[intent.kind, intent.name] = intent.body
            return True
        found = live
        if live is None and not intent.claimed:
            found = await self._api.get(intent.kind, seen.namespace, intent.name)
            if found is not None and (owner := self._taken(seen, intent, found)):
                # Stop: the next objects would use this one, as another pool's ServiceAccount or
                # configuration.
                outcome.failures.append(Failure(kind=intent.kind, name=intent.name, finding=owner))
                return False
        if found is not None and must_be_replaced(intent.body, found):
            await self._clear_way(intent, found)
        await self._write(intent, live, outcome)
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
        return True

    def _refused(self, seen: Observation, intent: Intent, error: ApiError, outcome: Outcome) -> bool:
        """Note the refusal of one intent; return whether to go on with the next one."""
        if error.status == 409 and error.reason in {"AlreadyExists", "Conflict"}:
            outcome.stale = True
            return False
        if error.namespace_terminating:
            finding = reasons.NAMESPACE_TERMINATING.say()
            outcome.failures.append(Failure(kind=intent.kind, name=intent.name, finding=finding, final=True))
            return False
        outcome.failures.append(_failure(intent, error))
        _log_refusal(seen, intent, error)
        return not (intent.kind is SERVICE and self._live(seen, intent) is None)

    async def remove(self, seen: Observation, doomed: Mapping[ChildKey, Object]) -> list[Failure]:
        """Delete these children, each only if it is still the object that was seen."""
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

    def _taken(self, seen: Observation, intent: Intent, found: Object) -> Finding | None:
        """Return why an existing object must not be overwritten; None when it may be."""
        if (owner := pool_of(found)) == seen.pool_name:
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
        kind = intent.kind
        if live is None and intent.claimed:
            made = await self._api.create(kind, intent.body, FIELD_MANAGER)
            await self._own_by_apply(intent, made, outcome)
        elif live is not None and (steps := obstacles(intent.body, live)):
            cleared = await self._edit(kind, live, steps)
            await self._own_by_apply(intent, cleared, outcome)
        written = await self._api.apply(kind, intent.body, FIELD_MANAGER, force=True)
        self._cache.put(kind, written)
        outcome.changed[kind, intent.name] = written
        if path := drift(intent.body, written, FIELD_MANAGER):
            finding = reasons.CHANGED_BACK.say(kind=kind.kind, name=intent.name, path=path)
            outcome.failures.append(Failure(kind=kind, name=intent.name, finding=finding))

    async def _clear_way(self, intent: Intent, live: Object) -> None:
        """Delete an object with an immutable field that differs, so that the apply makes it anew.

        A creation with dryRun=All under another name comes first. If the API server refuses it, as when the
        operator may not bind the ClusterRole, the live object stays.
        """
        metadata = {key: value for key, value in intent.body["metadata"].items() if key != "name"}
        trial = {**intent.body, "metadata": {**metadata, "generateName": f"{intent.name}-"}}
        await self._api.create(intent.kind, trial, FIELD_MANAGER, dry_run=True)
        await self._api.delete(intent.kind, live)
        metrics.WRITES.labels(intent.kind.kind, "delete").inc()
        log.info("deleted %s to make it anew", intent.kind.kind, extra={"object": intent.name})

    async def _own_by_apply(self, intent: Intent, live: Object, outcome: Outcome) -> Object:
        """Move fields owned by a POST or JSON patch to the Apply entry, so that an apply can remove them."""
        entries = as_applied(live, FIELD_MANAGER)
        if entries is None:
            return live
        step = {"op": "replace", "path": "/metadata/managedFields", "value": entries}
        written = await self._edit(intent.kind, live, [step])
        self._cache.put(intent.kind, written)
        outcome.changed[intent.kind, intent.name] = written
        return written

    async def _edit(self, kind: Kind, live: Object, steps: Sequence[Object]) -> Object:
        """Send a JSON patch. Raises ApiError 409 Conflict when the object has changed since it was read."""
        metadata = live["metadata"]
        version = {
            "op": "replace",
            "path": "/metadata/resourceVersion",
            "value": metadata["resourceVersion"],
        }
        patch = [version, *steps]
        return await self._api.edit(kind, metadata["namespace"], metadata["name"], patch, FIELD_MANAGER)


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
