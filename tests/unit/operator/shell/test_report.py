"""What the reporter writes, and in which portions; the API is a recorder."""

import asyncio
from dataclasses import replace
from typing import Any

from typing_extensions import override

from inference_api.inference_objective import InferenceObjective
from inference_operator.core import reasons
from inference_operator.core.cache import Cache
from inference_operator.core.kinds import OBJECTIVES, Kind, Object
from inference_operator.core.observation import Observation
from inference_operator.core.ownership import judge
from inference_operator.core.status import report
from inference_operator.shell.api import Api
from inference_operator.shell.report import Reporter
from observations import observation, settled
from recording_connection import RecordingConnection

KIND = OBJECTIVES[0]


class Recorder(Api):
    """Takes every apply and gives back what a server would."""

    __slots__ = ("applied",)

    def __init__(self) -> None:
        self.applied: list[Object] = []

    @override
    async def apply(
        self, kind: Kind, body: Object, manager: str, *, force: bool, subresource: str = ""
    ) -> Object:
        self.applied.append(body)
        entry = {"manager": manager, "operation": "Apply", "subresource": subresource, "fieldsV1": {}}
        metadata = {**body["metadata"], "resourceVersion": "9", "managedFields": [entry]}
        return {**body, "metadata": metadata}


def with_objectives(cache: Cache, count: int) -> Observation:
    bodies: list[dict[str, Any]] = [
        {
            "metadata": {"name": f"o{n:03}", "namespace": "ns", "generation": 1, "resourceVersion": "5"},
            "spec": {"poolRef": {"name": "llm"}, "priority": n},
        }
        for n in range(count)
    ]
    for body in bodies:
        cache.put(KIND, body)
    objectives = tuple(InferenceObjective.model_validate(body) for body in bodies)
    return settled(replace(observation(), objectives=objectives))


def test_a_new_priority_does_not_wait_until_all_objectives_are_told() -> None:
    api, cache = Recorder(), Cache()
    reporter = Reporter(api, cache)
    seen = with_objectives(cache, 100)
    asyncio.run(reporter.tell_objectives(seen, judge(seen), lambda: True))
    first = len(api.applied)
    assert 0 < first < 50
    asyncio.run(reporter.tell_objectives(seen, judge(seen), lambda: False))
    names = [body["metadata"]["name"] for body in api.applied]
    assert len(names) == len(set(names)) == 100, "the rest is told next time, and nothing twice"
    asyncio.run(reporter.tell_objectives(seen, judge(seen), lambda: False))
    assert len(api.applied) == 100


def test_no_objective_is_said_to_have_a_priority_that_is_not_written() -> None:
    api, cache = Recorder(), Cache()
    reporter = Reporter(api, cache)
    seen = with_objectives(cache, 2)
    refused = replace(seen, children=settled().children)  # the table of before, as in a pause or a refusal
    asyncio.run(reporter.tell_objectives(refused, judge(refused), lambda: False))
    assert api.applied == []
    asyncio.run(reporter.tell_objectives(seen, judge(seen), lambda: False))
    assert len(api.applied) == 2


def test_an_event_that_has_expired_is_made_anew_at_once() -> None:
    connection = RecordingConnection()
    reporter = Reporter(Api(connection), Cache())
    seen = settled()
    verdict = judge(seen)
    healed = [reasons.CHILD_HEALED.say(kind="ConfigMap", name="llm-epp-config", action="made again")]

    def tell() -> list[str]:
        """Report the same again; return the events that the API server holds then."""
        asyncio.run(reporter.tell(seen, verdict, report(seen, verdict, []), healed))
        return [
            path
            for path, body in connection.objects.items()
            if body["kind"] == "Event" and body["message"] == healed[0].message
        ]

    (path,) = tell()
    assert tell() == [path]
    del connection.objects[path]
    assert tell() == [path], "what happened is not lost with the old event"
