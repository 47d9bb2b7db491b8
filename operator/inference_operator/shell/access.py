"""Kinds that the API server serves and rights that it grants: asked in every resync, the first at start."""

from asyncio import gather
from dataclasses import dataclass

from inference_operator.core.kinds import (
    CHILD_KINDS,
    CRD,
    EVENT,
    OBJECTIVES,
    PICKER,
    POD,
    POOL,
    REWRITES,
    Kind,
)
from inference_operator.core.observation import Access, Denied
from inference_operator.shell.api import Api


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Access of the operator, and the kinds to watch."""

    access: Access
    watchable: frozenset[Kind]
    """Kinds for `Watch`: those that may be listed and watched, in every namespace to work in. Not pods."""


async def look(api: Api, namespaces: tuple[str, ...], child_kinds: tuple[Kind, ...] = CHILD_KINDS) -> Reach:
    """Ask for every kind and verb. Raises ApiUnavailable and ApiError."""
    served = await _served(api, child_kinds)
    objectives = next((kind for kind in OBJECTIVES if kind in served), None)
    ignored = next((kind for kind in OBJECTIVES if kind in served and kind is not objectives), None)
    if ignored is not None and _hidden(await _missing(api, ignored, namespaces)):
        ignored = None  # its objects are only counted: a missing right is no condition
    rewrites = next((kind for kind in REWRITES if kind in served), None)
    used = [POOL, PICKER, *child_kinds, POD, EVENT, *(each for each in (objectives, rewrites) if each)]
    rights = {kind: await _missing(api, kind, namespaces) for kind in used if kind in served}
    watched = {kind for kind, missing in rights.items() if not _hidden(missing)} - {EVENT, POD}
    # Without the right to watch CRDs, a new one is found in the next resync.
    if not _hidden(await _missing(api, CRD, ())):
        watched.add(CRD)
    if ignored is not None:
        watched.add(ignored)
    lacking = frozenset(each for missing in rights.values() for each in missing)
    access = Access(
        served=frozenset(kind for kind in served if kind in used),
        lacking=lacking,
        blind=frozenset(each.kind for each in lacking if each.blinds),
        objectives=objectives,
        rewrites=rewrites,
        ignored=ignored,
    )
    return Reach(access=access, watchable=frozenset(watched))


async def _served(api: Api, child_kinds: tuple[Kind, ...]) -> frozenset[Kind]:
    kinds = (POOL, PICKER, *OBJECTIVES, *REWRITES, *child_kinds, POD, EVENT)
    versions = sorted({(kind.group, kind.version) for kind in kinds})
    found = dict(zip(versions, await gather(*(api.served(*version) for version in versions)), strict=True))
    return frozenset(kind for kind in kinds if kind.plural in found[kind.group, kind.version])


async def _missing(api: Api, kind: Kind, namespaces: tuple[str, ...]) -> frozenset[Denied]:
    """Return the denied rights on the kind, for each namespace that the operator works in."""
    asked = [(verb, "") for verb in kind.verbs] + [(verb, "status") for verb in kind.status_verbs]
    spaces: tuple[str | None, ...] = namespaces or (None,)
    questions = [
        Denied(kind=kind, verb=verb, subresource=sub, namespace=space)
        for verb, sub in asked
        for space in spaces
    ]
    answers = await gather(*(api.may(kind, q.verb, q.namespace, q.subresource) for q in questions))
    return frozenset(q for q, allowed in zip(questions, answers, strict=True) if not allowed)


def _hidden(missing: frozenset[Denied]) -> bool:
    return any(each.hides for each in missing)
