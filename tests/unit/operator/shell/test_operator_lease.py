"""The operator's Lease on a recording API server and virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from typing_extensions import override

from inference_operator.core.kinds import LEASE, Object
from inference_operator.core.settings import Settings
from inference_operator.shell.api import Api
from inference_operator.shell.operator_lease import OperatorLease, Process
from recording_connection import Call, RecordingConnection
from virtual_time import run_virtual

DURATION = 30.0


class Leases(RecordingConnection):
    """An API server of Leases that several operators share."""

    __slots__ = ("account", "created", "down", "forbidden", "may_write")

    def __init__(self) -> None:
        super().__init__()
        self.account = ""
        self.created = 0
        self.down = False
        self.forbidden: set[str] = set()
        """Verbs on Leases that are refused."""
        self.may_write = True
        """The answer to every SubjectAccessReview."""

    @override
    async def request(
        self, method: str, path: str, query: dict[str, str], body: Any, content_type: str, seconds: float
    ) -> tuple[int, bytes]:
        if self.down:
            raise OSError("nobody listens")
        return await super().request(method, path, query, body, content_type, seconds)

    @override
    def _serve(self, call: Call) -> tuple[int, Object]:
        if call.path.endswith("/selfsubjectreviews"):
            return 201, {"status": {"userInfo": {"username": self.account}}}
        if call.path.endswith("/subjectaccessreviews"):
            return 201, {"status": {"allowed": self.may_write}}
        if call.path == LEASE.path():
            if "list" in self.forbidden:
                return 403, {"reason": "Forbidden", "message": "leases is forbidden"}
            items = [body for path, body in self.objects.items() if "/leases/" in path]
            return 200, {"metadata": {"resourceVersion": str(self.version)}, "items": items}
        if "/leases" in call.path and call.method != "GET" and "write" in self.forbidden:
            return 403, {"reason": "Forbidden", "message": "leases is forbidden"}
        if call.method == "PATCH" and call.path in self.objects:
            if call.body["metadata"].get("uid") != self.uid(call.path):
                return 409, {"reason": "Conflict"}
            return 200, self._store(call.path, self.objects[call.path], call.body, call, "Update")
        status, answer = super()._serve(call)
        if call.method == "POST" and "/leases" in call.path and status == 201:
            self.created += 1
            at = int(asyncio.get_running_loop().time())
            answer["metadata"] |= {
                "uid": f"uid-{self.created}",
                "creationTimestamp": f"2026-12-01T{at // 3600:02d}:{at // 60 % 60:02d}:{at % 60:02d}Z",
            }
        return status, answer

    def uid(self, path: str) -> str:
        return str(self.objects.get(path, {}).get("metadata", {}).get("uid"))


class Installation:
    """One operator's Lease at work."""

    def __init__(self, store: Leases, namespace: str, *namespaces: str) -> None:
        store.account = f"system:serviceaccount:{namespace}:headroom-operator"
        settings = Settings(namespaces=tuple(namespaces), lease_duration=DURATION)
        self.path = LEASE.path(namespace, "headroom-operator")
        self.changes = 0
        self.lease = OperatorLease(Api(store), settings, Process(host="pod", version="1"))
        self.lease.on_change = self._changed
        self.task = asyncio.create_task(self.lease.run())

    def _changed(self) -> None:
        self.changes += 1

    def writes_in(self, namespace: str) -> bool:
        """Whether a worker would start a pass there now."""
        waiting = self.lease.wait()
        try:
            waiting.send(None)
        except StopIteration:
            return not self.lease.owner(namespace)
        finally:
            waiting.close()
        return False

    async def kill(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


def drive(body: Callable[[Leases], Awaitable[None]]) -> Leases:
    store = Leases()

    async def main() -> None:
        await body(store)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    run_virtual(main())
    return store


async def started(store: Leases, namespace: str, *namespaces: str) -> Installation:
    made = Installation(store, namespace, *namespaces)
    await asyncio.sleep(3.0)
    return made


def test_an_operator_alone_writes_everywhere_after_its_first_look() -> None:
    async def body(store: Leases) -> None:
        one = Installation(store, "one")
        await asyncio.sleep(0.5)
        assert not one.writes_in("a")
        await asyncio.sleep(3.0)
        assert one.writes_in("a")

    drive(body)


def test_the_younger_leaves_the_common_namespaces_and_takes_over_when_the_older_is_killed() -> None:
    async def body(store: Leases) -> None:
        one = await started(store, "one", "a", "b")
        two = await started(store, "two", "b", "c")
        assert [two.writes_in(each) for each in "bc"] == [False, True]
        assert one.writes_in("b")
        await asyncio.sleep(20.0)
        assert list(one.lease.standing.younger) == ["two/headroom-operator"]
        await one.kill()
        await asyncio.sleep(DURATION * 0.6)
        assert not two.writes_in("b")
        await asyncio.sleep(DURATION)
        assert two.writes_in("b")
        assert two.changes == 2

    store = drive(body)
    events = [call.body["reason"] for call in store.calls if call.path.endswith("/events")]
    assert events == ["StandsAside", "YoungerStandsAside", "TookOver"]


def test_disjoint_operators_both_write_and_say_nothing() -> None:
    async def body(store: Leases) -> None:
        one = await started(store, "one", "a")
        two = await started(store, "two", "b")
        await asyncio.sleep(60.0)
        assert one.writes_in("a")
        assert two.writes_in("b")
        assert (one.changes, two.changes) == (0, 0)

    drive(body)


def test_two_that_start_in_the_same_second_agree() -> None:
    async def body(store: Leases) -> None:
        one = Installation(store, "one")
        await asyncio.sleep(0.1)
        two = Installation(store, "two")
        for _ in range(400):
            await asyncio.sleep(0.1)
            assert not (one.writes_in("a") and two.writes_in("a"))
        assert [one.writes_in("a"), two.writes_in("a")] == [True, False]

    drive(body)


def test_a_restart_of_the_older_within_the_duration_changes_nothing() -> None:
    async def body(store: Leases) -> None:
        one = await started(store, "one")
        two = await started(store, "two")
        await one.kill()
        await asyncio.sleep(DURATION * 0.7)
        again = Installation(store, "one")
        for _ in range(300):
            await asyncio.sleep(0.2)
            assert not two.writes_in("a")
        assert again.writes_in("a")

    drive(body)


def test_one_that_comes_back_after_it_was_replaced_is_the_younger_and_both_never_write() -> None:
    async def body(store: Leases) -> None:
        one = await started(store, "one")
        two = await started(store, "two")
        await one.kill()
        await asyncio.sleep(DURATION * 2)
        assert two.writes_in("a")
        again = Installation(store, "one")
        for _ in range(600):
            await asyncio.sleep(0.2)
            assert not (again.writes_in("a") and two.writes_in("a"))
        assert two.writes_in("a")
        assert again.lease.owner("a") == "two/headroom-operator"

    drive(body)


def test_one_that_took_over_keeps_its_rank_through_its_own_restart() -> None:
    async def body(store: Leases) -> None:
        one = await started(store, "one")
        two = await started(store, "two")
        await one.kill()
        await asyncio.sleep(DURATION * 2)
        await two.kill()
        again = await started(store, "two")
        assert again.writes_in("a")

    drive(body)


def test_one_cut_off_from_the_api_server_stops_before_the_other_takes_over() -> None:
    async def body(store: Leases) -> None:
        one = await started(store, "one")
        two = await started(store, "two")
        store.down = True
        await asyncio.sleep(DURATION * 0.7)
        assert not one.writes_in("a")
        store.down = False
        await asyncio.sleep(DURATION)
        assert one.writes_in("a")
        assert not two.writes_in("a")

    drive(body)


def test_more_namespaces_make_an_installation_the_younger_one_again() -> None:
    async def body(store: Leases) -> None:
        one = await started(store, "one", "a")
        two = await started(store, "two", "b")
        await one.kill()
        wider = await started(store, "one", "a", "b")
        assert [wider.writes_in(each) for each in "ab"] == [True, False]
        assert two.writes_in("b")

    drive(body)


def test_a_deleted_lease_is_made_again() -> None:
    async def body(store: Leases) -> None:
        one = await started(store, "one")
        del store.objects[one.path]
        await asyncio.sleep(DURATION)
        assert one.path in store.objects
        assert one.writes_in("a")

    drive(body)


def test_a_record_of_an_account_that_may_not_write_there_does_not_count() -> None:
    async def body(store: Leases) -> None:
        await started(store, "forger")
        store.may_write = False
        two = await started(store, "two")
        assert two.writes_in("a")

    drive(body)


def test_without_the_right_to_read_leases_it_works_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def body(store: Leases) -> None:
        store.forbidden = {"list"}
        one = await started(store, "one")
        assert one.writes_in("a")
        assert "an overlap is not noticed" in one.lease.problem
        await asyncio.sleep(DURATION * 3)

    drive(body)
    assert caplog.text.count("an overlap is not noticed") == 1


def test_without_the_right_to_write_its_lease_it_leaves_everything_to_others() -> None:
    async def body(store: Leases) -> None:
        await started(store, "one", "a")
        store.forbidden = {"write"}
        two = await started(store, "two", "a", "b")
        assert [two.writes_in(each) for each in "ab"] == [False, True]
        assert "cannot be written" in two.lease.problem

    drive(body)


def test_outside_a_cluster_the_lease_is_named_after_the_machine() -> None:
    async def body(store: Leases) -> None:
        one = Installation(store, "one")
        store.account = "admin@example.com"
        await asyncio.sleep(3.0)
        assert one.lease.installation == "headroom-system/headroom-operator-at-pod"

    drive(body)
