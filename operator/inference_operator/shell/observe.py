"""Building the observation of a pool: from the caches, and by API calls for objects that no cache holds."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from pydantic import ValidationError

from cluster_client.pods import has_ready_condition
from cluster_client.selectors import selector_query
from inference_api.inference_model_rewrite import InferenceModelRewrite
from inference_api.inference_objective import InferenceObjective
from inference_api.inference_pool import InferencePool
from inference_operator.core.cache import Cache
from inference_operator.core.endpoints import EndpointTally, tally
from inference_operator.core.kinds import (
    CHILD_KINDS,
    DEPLOYMENT,
    PICKER,
    POD,
    POOL,
    SERVICE,
    Kind,
    Object,
    PoolKey,
)
from inference_operator.core.naming import APP_LABEL
from inference_operator.core.observation import Access, ChildKey, Observation, Rival
from inference_operator.core.ownership import invalid_label_key, ours
from inference_operator.core.rewrites import by_age
from inference_operator.core.rollout import rolled_out
from inference_operator.core.settings import Settings
from inference_operator.shell.api import Api, ApiError
from inference_operator.shell.pods import PodWatches

log = logging.getLogger(__name__)


class Reader:
    """Makes the Observation of a pool."""

    __slots__ = (
        "_absent_since",
        "_api",
        "_cache",
        "_clock",
        "_known_since",
        "_parsed",
        "_settings",
        "_watches",
        "access",
    )

    def __init__(
        self,
        api: Api,
        cache: Cache,
        watches: PodWatches,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._watches = watches
        self._cache = cache
        self._settings = settings
        self._clock = clock
        self._absent_since: dict[PoolKey, tuple[str, float]] = {}
        self._known_since: dict[PoolKey, tuple[str, float]] = {}
        self._parsed: dict[tuple[Kind, PoolKey], dict[str, tuple[Object, InferenceObjective | None]]] = {}
        self.access = Access()
        """What the API server allows; replaced in every resync."""

    async def observe(self, key: PoolKey) -> Observation:
        """Return the pool's observation. Raises ApiUnavailable and ApiError."""
        namespace, name = key
        body = self._cache.get(POOL, namespace, name)
        seen = Observation(
            key=key,
            settings=self._settings,
            now=datetime.now(UTC),
            objectives=self._objectives(key, self.access.objectives),
            rewrites=self._rewrites(key, self.access.rewrites),
            ignored_objectives=len(self._objectives(key, self.access.ignored)),
            access=self._access(namespace),
        )
        seen = seen.with_pool(body).with_picker(self._cache.get(PICKER, namespace, name))
        seen = replace(seen, children=self._children(seen))
        pool = seen.pool
        if body is None or body["metadata"].get("deletionTimestamp"):
            self._forget(key)
            return seen
        if pool is None:
            return replace(seen, known_for=self._since(self._known_since, seen, begun=True))
        service = await self._service(seen)
        seen = replace(
            seen,
            rivals=self._rivals(seen),
            service=service,
            absent_for=self._since(self._absent_since, seen, begun=service is None),
            known_for=self._since(self._known_since, seen, begun=True),
            endpoints=await self._endpoints(key, pool),
        )
        return replace(seen, picker_pods=await self._unready_pods(seen))

    def _children(self, seen: Observation) -> dict[ChildKey, Object]:
        return {
            (kind, body["metadata"]["name"]): body
            for kind in CHILD_KINDS
            for body in self._cache.naming(kind, seen.namespace, seen.pool_name)
            if ours(body, seen.pool_name, seen.pool_uid)
        }

    def _objectives(self, key: PoolKey, kind: Kind | None) -> tuple[InferenceObjective, ...]:
        namespace, name = key
        if kind is None:
            return ()
        # Keep each parsed version: a pool may have thousands of objectives.
        before, parsed = self._parsed.get((kind, key), {}), {}
        for body in self._cache.naming(kind, namespace, name):
            called = body["metadata"]["name"]
            held = before.get(called)
            parsed[called] = held if held is not None and held[0] is body else (body, _objective(body))
        if parsed:
            self._parsed[kind, key] = parsed
        else:
            self._parsed.pop((kind, key), None)
        return tuple(found for _, (_, found) in sorted(parsed.items()) if found is not None)

    def _rewrites(self, key: PoolKey, kind: Kind | None) -> tuple[InferenceModelRewrite, ...]:
        namespace, name = key
        if kind is None:
            return ()
        found = [_rewrite(body) for body in self._cache.naming(kind, namespace, name)]
        return by_age(each for each in found if each is not None)

    def _rivals(self, seen: Observation) -> tuple[Rival, ...]:
        rivals = []
        for body in self._cache.naming(POOL, seen.namespace, seen.picker_name):
            metadata = body["metadata"]
            if metadata["name"] == seen.pool_name:
                continue
            if metadata.get("deletionTimestamp"):
                continue
            created = datetime.fromisoformat(metadata["creationTimestamp"])
            rivals.append(Rival(name=metadata["name"], uid=metadata["uid"], created=created))
        return tuple(rivals)

    async def _service(self, seen: Observation) -> Object | None:
        """Return the Service that the pool names.

        A Service without Headroom's label is not watched, so one that is not in the cache is read by a GET.
        """
        ref = seen.picker_ref
        if ref is None or ref.group or ref.kind != "Service":
            return None
        held = self._cache.get(SERVICE, seen.namespace, ref.name)
        if held is not None:
            return held
        try:
            return await self._api.get(SERVICE, seen.namespace, ref.name)
        except ApiError as error:
            if error.status in {400, 403, 404}:  # 400: no valid name; 403: a missing right
                return None
            raise

    def _since(self, marks: dict[PoolKey, tuple[str, float]], seen: Observation, *, begun: bool) -> float:
        """Return for how many seconds `begun` has been True with the same picker name; 0 when it is False."""
        if not begun:
            marks.pop(seen.key, None)
            return 0.0
        now = self._clock()
        name, since = marks.get(seen.key, (seen.picker_name, now))
        if name != seen.picker_name:
            since = now
        marks[seen.key] = (seen.picker_name, since)
        return now - since

    def _forget(self, key: PoolKey) -> None:
        self._absent_since.pop(key, None)
        self._known_since.pop(key, None)

    def _access(self, namespace: str) -> Access:
        """Return the access in the namespace. Kinds that were not listed yet count as blind."""
        read = {PICKER, *CHILD_KINDS}
        read |= {each for each in (self.access.objectives, self.access.rewrites) if each}
        unknown = (read & self.access.served) - self._cache.synced
        access = self.access.within(namespace)
        return replace(access, blind=access.blind | unknown)

    def follow(self, seen: Observation, managed: bool) -> None:
        """Watch the pods of a managed pool; stop watching those of any other."""
        if seen.pool is None or not managed or not _has_valid_selector(seen.pool):
            self._watches.forget(seen.key)
        else:
            self._watches.follow(seen.key, seen.pool.spec.selector.match_labels)

    def forget(self, key: PoolKey) -> None:
        """Stop watching the pool's pods."""
        self._watches.forget(key)

    async def _endpoints(self, key: PoolKey, pool: InferencePool) -> EndpointTally:
        if not _has_valid_selector(pool):
            return EndpointTally()
        pods = await self._pods(key[0], pool.spec.selector.match_labels)
        return tally(pods, [port.number for port in pool.spec.target_ports])

    async def _unready_pods(self, seen: Observation) -> tuple[Object, ...]:
        """Return the unready pods of the pool's Deployments: their status has the cause."""
        found: list[Object] = []
        for (kind, name), body in seen.children.items():
            if kind is DEPLOYMENT and not rolled_out(body):
                pods = await self._pods(seen.namespace, {APP_LABEL: name})
                found += [pod for pod in pods if not has_ready_condition(pod)]
        return tuple(found)

    async def _pods(self, namespace: str, labels: Mapping[str, str]) -> list[Object]:
        """Return the pods with these labels, from the namespace's watch or, without one, by a list."""
        if (watched := self._watches.pods(namespace, labels)) is not None:
            return watched
        try:
            pods, _ = await self._api.list_all(POD, namespace, selector_query(labels), cached=True)
        except ApiError as error:
            if error.status == 403:  # ResolvedRefs names the missing right
                return []
            raise
        return pods


def _objective(body: Object) -> InferenceObjective | None:
    """Return the objective; None when its type refuses what another version's CRD admitted."""
    try:
        return InferenceObjective.model_validate(body)
    except ValidationError:
        metadata = body["metadata"]
        log.warning(
            "objective not understood", extra={"object": f"{metadata['namespace']}/{metadata['name']}"}
        )
        return None


def _rewrite(body: Object) -> InferenceModelRewrite | None:
    """Return the rewrite; None when its type refuses what another version's CRD admitted."""
    try:
        return InferenceModelRewrite.model_validate(body)
    except ValidationError:
        metadata = body["metadata"]
        log.warning(
            "model rewrite not understood", extra={"object": f"{metadata['namespace']}/{metadata['name']}"}
        )
        return None


def _has_valid_selector(pool: InferencePool) -> bool:
    """Return whether the API server would take the pool's labels as a selector."""
    return not any(invalid_label_key(key) for key in pool.spec.selector.match_labels)
