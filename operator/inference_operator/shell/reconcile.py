"""One pass over one pool: observe, judge, desire, apply, report."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from inference_operator.core import reasons
from inference_operator.core.cache import Cache
from inference_operator.core.configuration import question
from inference_operator.core.desired.plan import desired, superfluous
from inference_operator.core.kinds import CHILD_KINDS, PICKER, POOL, PoolKey
from inference_operator.core.naming import FIELD_MANAGER
from inference_operator.core.observation import ChildKey, Observation
from inference_operator.core.ownership import Stance, Verdict, judge
from inference_operator.core.parents import wanted_parents
from inference_operator.core.picker_answers import PickerAnswer
from inference_operator.core.reasons import Finding
from inference_operator.core.rollout import why_again
from inference_operator.core.status import RUNNING, report, unready_for
from inference_operator.shell import metrics
from inference_operator.shell.api import Api, ApiError
from inference_operator.shell.apply import Applier, Outcome
from inference_operator.shell.ask_picker import PickerAsker
from inference_operator.shell.observe import Reader
from inference_operator.shell.report import Reporter


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a pass."""

    recheck_after: float | None = None
    """Seconds after which to run the next pass without an event; None: wait for one."""
    refused: bool = False
    """Whether to retry with back-off: a write was refused, or an object had changed."""
    wrote: bool = False
    repaired: bool = False
    """Whether an object that had its intent was changed or deleted, and repaired."""
    stance: Stance | None = None
    """The verdict's stance; None when there is no pool."""


class Pass:
    """The pass that a worker runs for a key."""

    __slots__ = ("_api", "_applier", "_asker", "_cache", "_reader", "_reporter")

    def __init__(
        self,
        reader: Reader,
        applier: Applier,
        asker: PickerAsker,
        reporter: Reporter,
        api: Api,
        cache: Cache,
    ) -> None:
        self._reader = reader
        self._applier = applier
        self._asker = asker
        self._reporter = reporter
        self._api = api
        self._cache = cache

    async def run(self, key: PoolKey, woken: Callable[[], bool]) -> Result:
        """Run one pass over the pool. Raises ApiUnavailable and ApiError.

        Once `woken` returns True, another pass is due, and the rest of the objectives is left to it.
        """
        seen = await self._reader.observe(key)
        verdict = judge(seen)
        self._reader.follow(seen, verdict.stance is Stance.MANAGED)
        if seen.pool_object is None:
            self._applier.forget(key)
            self._asker.forget(key)
        if seen.pool_object is None and seen.picker_object is None and not (seen.objectives or seen.rewrites):
            return Result()
        intents = desired(seen, verdict)
        outcome = await self._applier.carry_out(seen, intents)
        if outcome.stale:
            return Result(refused=True)
        doomed = superfluous(seen, verdict, intents)
        kept = await self._applier.remove(seen, doomed)
        outcome.failures += kept
        events = [
            *outcome.healed,
            *_removals(verdict, doomed.keys() - {(each.kind, each.name) for each in kept}),
        ]
        seen = self._with_changes(seen, outcome, doomed)
        seen = replace(seen, picker_answer=self._ask(seen, verdict))
        told = report(seen, verdict, outcome.failures, intents)
        await self._reporter.tell(seen, verdict, told, events)
        await self._tell_parents(seen, verdict)
        await self._reporter.tell_objectives(seen, verdict, woken)
        return Result(
            recheck_after=verdict.recheck_after or _recheck(seen, verdict),
            refused=any(not failure.final for failure in outcome.failures),
            wrote=bool(outcome.changed or doomed),
            repaired=bool(outcome.healed),
            stance=None if seen.pool_object is None else verdict.stance,
        )

    def leave(self, key: PoolKey) -> None:
        """Forget what is kept of a pool that is left to another operator."""
        self._reader.forget(key)
        self._applier.forget(key)
        self._asker.forget(key)

    def _with_changes(
        self, seen: Observation, outcome: Outcome, doomed: Mapping[ChildKey, Any]
    ) -> Observation:
        children = {key: body for key, body in seen.children.items() if key not in doomed}
        children |= {key: body for key, body in outcome.changed.items() if key[0] in CHILD_KINDS}
        return replace(seen, children=children).with_picker(self._cache.get(PICKER, *seen.key))

    def _ask(self, seen: Observation, verdict: Verdict) -> PickerAnswer:
        """Return the picker's latest answer; `PickerAsker` asks in the background."""
        if verdict.stance in RUNNING:
            return self._asker.ask(seen.key, question(seen))
        self._asker.forget(seen.key)
        return PickerAnswer()

    async def _tell_parents(self, seen: Observation, verdict: Verdict) -> None:
        parents = None if seen.pool_object is None else wanted_parents(seen, verdict)
        if parents is None or seen.pool_object is None:
            return
        # Read the pool again: a PUT with the resourceVersion of an older list would be refused.
        fresh = await self._api.get(POOL, *seen.key)
        if fresh is None or fresh["metadata"]["uid"] != seen.pool_object["metadata"]["uid"]:
            return
        parents = wanted_parents(replace(seen, pool_object=fresh), verdict)
        if parents is None:
            return
        body = {**fresh, "status": {**fresh.get("status", {}), "parents": parents}}
        try:
            written = await self._api.replace_status(POOL, body, FIELD_MANAGER)
        except ApiError as error:
            if error.status != 409:  # a gateway has written meanwhile: its event starts another pass
                raise
            return
        metrics.WRITES.labels(POOL.kind, "status").inc()
        self._cache.put(POOL, written)


def _removals(verdict: Verdict, removed: Iterable[ChildKey]) -> list[Finding]:
    """Return the event that says what was removed; none when nothing was."""
    objects = ", ".join(sorted(f"{kind.kind} {name}" for kind, name in removed))
    if not objects:
        return []
    if verdict.stance is Stance.LET_GO:
        return [reasons.LET_GO.say(objects=objects, why=verdict.finding.message)]
    return [reasons.REMOVED.say(objects=objects)]


def _recheck(seen: Observation, verdict: Verdict) -> float | None:
    if verdict.stance not in {Stance.MANAGED, Stance.HELD}:
        return None
    if seen.picker_pods:
        return why_again(unready_for(seen))
    return seen.picker_answer.again_within
