"""A kind that a cluster may lack: what happens to the children of it, by a made-up kind."""

import asyncio
from dataclasses import replace

import pytest

from inference_operator.core.cache import Cache
from inference_operator.core.desired.intent import intent
from inference_operator.core.desired.plan import desired
from inference_operator.core.kinds import CHILD_KINDS, OWN, Kind
from inference_operator.core.observation import Denied, Observation
from inference_operator.core.ownership import judge
from inference_operator.core.status import report
from inference_operator.shell.access import Reach, look
from inference_operator.shell.api import Api
from inference_operator.shell.apply import Applier
from observations import FULL_ACCESS, observation, settled
from recording_connection import RecordingConnection
from scripted_connection import ScriptedConnection

RULE = Kind("example.dev", "v1", "rules", "Rule", OWN, optional=True)
WANTED = intent(RULE, {"name": "llm-epp", "namespace": "ns"}, spec={"host": "llm-epp"})


def with_rule(*, served: bool, seen: Observation | None = None) -> Observation:
    seen = observation() if seen is None else seen
    kinds = {RULE} if served else set()
    return replace(seen, access=replace(seen.access, served=seen.access.served | kinds))


@pytest.mark.parametrize("served", [False, True])
def test_a_child_of_a_kind_that_is_absent_is_left_out_and_the_rest_is_made(served: bool) -> None:
    connection = RecordingConnection()
    seen = with_rule(served=served)
    intents = (*desired(seen, judge(seen))[:3], WANTED, *desired(seen, judge(seen))[3:])
    outcome = asyncio.run(Applier(Api(connection), Cache()).carry_out(seen, intents))
    assert not outcome.failures
    assert ("apply rules/llm-epp" in connection.writes) is served
    assert "apply deployments/llm-epp" in connection.writes


def resolved(seen: Observation, *intents: object) -> tuple[str, str, str]:
    made = report(seen, judge(seen), (), intents)  # type: ignore[arg-type]
    found = next(each for each in made.status.conditions if each.type == "ResolvedRefs")
    return found.status, found.reason, found.message


def test_the_condition_names_what_is_left_out() -> None:
    absent = with_rule(served=False, seen=settled())
    status, reason, message = resolved(absent, WANTED)
    assert (status, reason) == ("True", "ResolvedRefs")
    assert "Left out: Rule llm-epp" in message
    assert "rules.example.dev" in message
    assert "Left out" not in resolved(absent)[2], "a pool that has no such child is not told"
    assert "Left out" not in resolved(with_rule(served=True, seen=settled()), WANTED)[2]


def test_rights_on_an_optional_kind_are_missed_only_by_a_pool_that_has_a_child_of_it() -> None:
    seen = with_rule(served=True, seen=settled())
    denied = frozenset({Denied(kind=RULE, verb="patch")})
    seen = replace(seen, access=replace(seen.access, lacking=denied))
    assert resolved(seen)[0] == "True"
    assert resolved(seen, WANTED)[:2] == ("False", "AccessDenied")


def test_an_absent_kind_is_neither_watched_nor_missed() -> None:
    async def body() -> Reach:
        return await look(ScriptedConnection().api, (), (*CHILD_KINDS, RULE))

    reach = asyncio.run(body())
    assert RULE not in reach.watchable
    assert RULE not in reach.access.served
    assert reach.access.lacks(RULE)
    assert not any(each.kind is RULE for each in reach.access.lacking)
    assert not FULL_ACCESS.lacks(CHILD_KINDS[0])
