"""Whole passes over a recording API: what is written, what is logged, whether to try again."""

import asyncio
import logging
import time
from typing import Any

import pytest

from inference_operator.core.cache import Cache
from inference_operator.core.kinds import CHILD_KINDS, PICKER, POOL, ROLE_BINDING, Kind
from inference_operator.core.ownership import Stance
from inference_operator.shell.api import Api
from inference_operator.shell.apply import Applier
from inference_operator.shell.ask_picker import PickerAsker
from inference_operator.shell.observe import Reader
from inference_operator.shell.pods import PodWatches
from inference_operator.shell.reconcile import Pass, Result
from inference_operator.shell.report import Reporter
from inference_operator.shell.supervision import Supervisor
from observations import FULL_ACCESS, SETTINGS, pool_body
from recording_connection import RecordingConnection

Object = dict[str, Any]
TERMINATING = {"details": {"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]}}


class Bench:
    """An operator's pass over one pool, without watches: what was written is what is seen next."""

    def __init__(self, pool: Object | None = None) -> None:
        self.connection = RecordingConnection()
        self.cache = Cache()
        self.cache.synced |= {
            POOL,
            PICKER,
            *CHILD_KINDS,
            *([FULL_ACCESS.objectives] if FULL_ACCESS.objectives else []),
        }
        self.now = 100.0
        self.api = Api(self.connection)
        self.supervisor = Supervisor(time.monotonic)
        watches = PodWatches(self.api, lambda _: None, self.supervisor)
        self.reader = Reader(self.api, self.cache, watches, SETTINGS, clock=lambda: self.now)
        self.reader.access = FULL_ACCESS
        self.applier = Applier(self.api, self.cache)
        self.reporter = Reporter(self.api, self.cache)
        body = pool_body() if pool is None else pool
        self.connection.objects[POOL.path("ns", "llm")] = body
        self.connection.objects["/api/v1/namespaces/ns/pods"] = {"items": []}

    def run(self, *, passed: float = 60.0) -> Result:
        """Run one pass some seconds after the last."""
        for kind in (POOL, PICKER, *CHILD_KINDS):
            self.cache.replace(kind, self._all(kind), 10**9)
        self.now += passed
        return asyncio.run(self._pass())

    async def _pass(self) -> Result:
        asker = PickerAsker(self.api, lambda _: None, 60.0)
        made = Pass(self.reader, self.applier, asker, self.reporter, self.api, self.cache)
        try:
            return await made.run(("ns", "llm"), lambda: False)
        finally:
            await asker.close()
            self.reader.follow(await self.reader.observe(("ns", "llm")), False)
            await self.supervisor.close()

    def _all(self, kind: Kind) -> list[Object]:
        root = kind.path("ns") + "/"
        return [body for path, body in self.connection.objects.items() if path.startswith(root)]

    def condition(self, kind: str) -> tuple[str, str]:
        """Return status and reason of the EndpointPicker's condition."""
        conditions = self.object(PICKER)["status"]["conditions"]
        return next((c["status"], c["reason"]) for c in conditions if c["type"] == kind)

    def object(self, kind: Kind) -> Object:
        return self.connection.objects[kind.path("ns", "llm")]

    def writes(self) -> list[str]:
        """Return the writes since the last call."""
        found = list(self.connection.writes)
        self.connection.calls.clear()
        return found


def running() -> Bench:
    """Return a pool whose objects have all been made."""
    bench = Bench()
    bench.run()
    bench.run()
    bench.writes()
    return bench


def test_a_pool_is_taken_up_after_the_wait_and_then_there_is_silence() -> None:
    bench = Bench()
    assert bench.run().stance is Stance.WAITING
    assert bench.writes() == []
    bench.run()
    assert "create services/llm-epp" in bench.writes()
    bench.run()
    bench.writes()
    assert not bench.run().wrote
    assert bench.writes() == []


def test_in_a_namespace_that_is_being_deleted_nothing_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = running()
    for kind in CHILD_KINDS:
        for path in [path for path in bench.connection.objects if path.startswith(kind.path("ns") + "/")]:
            del bench.connection.objects[path]
    with (
        caplog.at_level(logging.WARNING),
        bench.connection.refusing("create", 403, "Forbidden", **TERMINATING),
    ):
        bench.run()  # the Service has been absent for a moment only
        result = bench.run()
        bench.writes()
        bench.run()
    assert not result.refused
    assert caplog.records == []
    assert bench.condition("ResolvedRefs") == ("False", "NamespaceTerminating")
    assert bench.writes() == ["create services/llm-epp"]


def test_a_refusal_with_another_cause_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    bench = running()
    del bench.connection.objects[ROLE_BINDING.path("ns", "llm-epp")]
    with caplog.at_level(logging.WARNING), bench.connection.refusing("apply rolebindings", 403, "Forbidden"):
        assert bench.run().refused
    assert "RoleBinding refused" in caplog.text
    assert bench.condition("ResolvedRefs") == ("False", "ApplyFailed")


def test_an_event_that_expired_is_made_anew() -> None:
    bench = running()
    made = [path for path in bench.connection.objects if "/events/" in path]
    assert made
    for path in made:
        del bench.connection.objects[path]
    bench.connection.objects[POOL.path("ns", "llm")]["spec"]["endpointPickerRef"]["name"] = "a.b"
    bench.run()
    bench.connection.objects[POOL.path("ns", "llm")]["spec"]["endpointPickerRef"]["name"] = "llm-epp"
    bench.run()
    bench.run()
    again = [path for path in bench.connection.objects if "/events/" in path]
    assert set(made) & set(again)


def messages(bench: Bench, reason: str) -> list[str]:
    """Return the messages of the events with that reason."""
    events = [body for path, body in bench.connection.objects.items() if "/events/" in path]
    return [str(body["message"]) for body in events if body["reason"] == reason]


@pytest.mark.parametrize(
    ("ref", "reason"),
    [
        pytest.param({"name": "vllm.qwen"}, "InvalidPickerName", id="no name of a Service"),
        pytest.param({"kind": "Thing"}, "UnsupportedRefKind", id="another kind"),
        pytest.param(None, "EndpointPickerRefMissing", id="no reference"),
        pytest.param({"name": "theirs"}, "PickerNameTaken", id="an older pool's picker"),
    ],
)
def test_a_reference_that_cannot_work_leaves_what_runs_as_it_is_and_says_so(
    ref: Object | None, reason: str
) -> None:
    bench = running()
    elder = pool_body("elder", picker="theirs", metadata={"creationTimestamp": "2026-01-01T00:00:00Z"})
    bench.connection.objects[POOL.path("ns", "elder")] = elder
    spec = bench.object(POOL)["spec"]
    spec["endpointPickerRef"] = None if ref is None else {**spec["endpointPickerRef"], **ref}
    before = {kind: bench._all(kind) for kind in CHILD_KINDS}
    bench.run()
    bench.run()
    assert {kind: bench._all(kind) for kind in CHILD_KINDS} == before
    assert not [write for write in bench.writes() if write.startswith("delete")]
    assert bench.condition("Accepted") == ("False", reason)
    (message,) = messages(bench, reason)
    assert "left as it is" in message


def test_an_event_says_what_was_removed_for_another_reference() -> None:
    bench = running()
    bench.object(POOL)["spec"]["endpointPickerRef"]["name"] = "other-epp"
    bench.run()
    bench.run()
    (message,) = messages(bench, "Removed")
    for name in ("Service llm-epp", "Deployment llm-epp", "ConfigMap llm-epp-config"):
        assert name in message
    bench.writes()
    bench.run()
    assert bench.writes() == [], "told once"


def test_a_pool_that_is_not_to_be_managed_any_more_says_so_at_once() -> None:
    bench = running()
    annotations = bench.object(POOL)["metadata"]["annotations"]
    annotations["headroom.dev/managed"] = "false"
    bench.run()
    assert bench.object(POOL)["metadata"]["annotations"]["headroom.dev/picker"] == "NotManaged"
    (message,) = messages(bench, "NotManaged")
    assert '"false"' in message
    assert "no longer healed" in message
    bench.writes()
    bench.run()
    assert bench.writes() == [], "told once"


def test_a_pool_that_was_never_managed_is_not_written_to() -> None:
    bench = Bench(pool_body(metadata={"annotations": {"headroom.dev/managed": "false"}}))
    bench.run()
    bench.run()
    assert bench.writes() == []


def test_the_word_on_the_pool_is_forced() -> None:
    bench = running()
    annotations = bench.object(POOL)["metadata"]["annotations"]
    word = annotations["headroom.dev/picker"]
    annotations["headroom.dev/picker"] = "Wrong"
    bench.run()
    calls = [
        call for call in bench.connection.calls if "inferencepools" in call.path and call.method == "PATCH"
    ]
    assert [call.query["force"] for call in calls] == ["true"]
    assert bench.object(POOL)["metadata"]["annotations"]["headroom.dev/picker"] == word


def test_an_endpoint_picker_that_is_not_understood_is_told_and_the_pass_succeeds() -> None:
    bench = running()
    bench.object(PICKER)["spec"] = {"proxy": {"replicas": "many"}}
    result = bench.run()
    assert (result.stance, result.refused) == (Stance.HELD, False)
    assert bench.condition("Accepted") == ("False", "InvalidEndpointPicker")
    assert bench.writes()
    bench.run()
    assert bench.writes() == [], "told once"


def test_a_pool_that_is_not_understood_is_told_and_the_pass_succeeds() -> None:
    bench = running()
    bench.object(POOL)["spec"]["selector"] = {}
    result = bench.run()
    assert (result.stance, result.refused) == (Stance.HELD, False)
    assert bench.condition("Accepted") == ("False", "InvalidPool")
    assert bench.object(POOL)["metadata"]["annotations"]["headroom.dev/picker"] == "InvalidPool"
    bench.writes()
    bench.run()
    assert bench.writes() == [], "told once"
