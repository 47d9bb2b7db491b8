"""The watch of pods on a scripted API server and virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from inference_operator.core.kinds import POD, Object, PoolKey
from inference_operator.core.naming import pool_hash, selector_labels
from inference_operator.shell.pods import PodWatches
from inference_operator.shell.supervision import Supervisor
from scripted_connection import ScriptedConnection
from virtual_time import run_virtual

WATCH = "WATCH /api/v1/namespaces/ns/pods"
LIST = "GET /api/v1/namespaces/ns/pods"


def pod(name: str, *, ready: bool = True, **labels: str) -> Object:
    status = {"phase": "Running", "podIP": "10.0.0.1"}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"metadata": {"name": name, "labels": labels}, "status": {**status, "conditions": conditions}}


@dataclass
class Run:
    connection: ScriptedConnection
    watches: PodWatches
    supervisor: Supervisor
    woken: list[PoolKey] = field(default_factory=list)

    def names(self, **labels: str) -> list[str] | None:
        pods = self.watches.pods("ns", labels)
        return None if pods is None else sorted(pod["metadata"]["name"] for pod in pods)

    async def event(self, what: str, body: Object) -> None:
        """Have the open stream report that, and clear what it woke before."""
        self.woken.clear()
        self.connection.report(POD, what, body)
        await asyncio.sleep(0.1)


def drive(body: Callable[[Run], Awaitable[None]]) -> None:
    async def main() -> None:
        connection = ScriptedConnection()
        supervisor = Supervisor(asyncio.get_running_loop().time)
        woken: list[PoolKey] = []
        watches = PodWatches(connection.api, woken.append, supervisor)
        await body(Run(connection, watches, supervisor, woken))
        await supervisor.close()

    run_virtual(main())


def follow(run: Run, *pools: str, **more: Any) -> None:
    for name in pools:
        run.watches.follow(("ns", name), {"app": name})


def test_a_hundred_pools_of_a_namespace_cost_one_stream() -> None:
    async def body(run: Run) -> None:
        follow(run, *(f"pool-{number}" for number in range(100)))
        await asyncio.sleep(10.0)
        assert len(run.connection.times(WATCH)) == 1
        assert len(run.connection.times(LIST)) == 1

    drive(body)


def test_a_change_wakes_the_pools_that_select_the_pod_and_no_other() -> None:
    async def body(run: Run) -> None:
        run.connection.put(POD, pod("a", app="one"))
        follow(run, "one", "two")
        run.watches.follow(("ns", "all"), {})
        await asyncio.sleep(1.0)
        assert run.names(app="one") == ["a"]
        await run.event("MODIFIED", pod("a", app="one", ready=False))
        assert set(run.woken) == {("ns", "one"), ("ns", "all")}
        await run.event("MODIFIED", pod("a", app="two", ready=False))
        assert set(run.woken) == {("ns", "one"), ("ns", "two"), ("ns", "all")}, "it moved"
        await run.event("MODIFIED", pod("a", app="two", ready=False))
        assert not run.woken, "nothing that matters changed"
        await run.event("DELETED", pod("a", app="two"))
        assert set(run.woken) == {("ns", "two"), ("ns", "all")}
        assert run.names() == []

    drive(body)


def test_the_pods_of_a_picker_wake_its_pool_and_keep_their_status() -> None:
    async def body(run: Run) -> None:
        follow(run, "llm", "other")
        await asyncio.sleep(1.0)
        labels = {**selector_labels("llm-epp"), "headroom.dev/pool-hash": pool_hash("llm")}
        crashed = pod("epp-1", ready=False, **labels)
        crashed["status"]["containerStatuses"] = [{"name": "epp", "state": {"waiting": {"reason": "X"}}}]
        await run.event("ADDED", crashed)
        assert run.woken == [("ns", "llm")]
        held = (run.watches.pods("ns", selector_labels("llm-epp")) or [])[0]
        assert held["status"]["containerStatuses"][0]["state"] == {"waiting": {"reason": "X"}}

    drive(body)


def test_a_pool_with_another_selector_is_found_by_it_at_once() -> None:
    async def body(run: Run) -> None:
        run.connection.put(POD, pod("a", app="new"))
        follow(run, "llm")
        await asyncio.sleep(1.0)
        run.watches.follow(("ns", "llm"), {"app": "new"})
        assert run.names(app="new") == ["a"]
        await run.event("DELETED", pod("a", app="new"))
        assert run.woken == [("ns", "llm")]

    drive(body)


def test_the_stream_ends_with_the_last_pool_of_its_namespace() -> None:
    async def body(run: Run) -> None:
        follow(run, "one", "two")
        await asyncio.sleep(1.0)
        run.watches.forget(("ns", "one"))
        assert run.names() == []
        run.watches.forget(("ns", "two"))
        assert run.names() is None
        await asyncio.sleep(1.0)
        assert not run.supervisor.parts("pods")
        assert run.connection.open_streams == 0

    drive(body)


def test_a_namespace_that_cannot_be_watched_is_not_known() -> None:
    async def body(run: Run) -> None:
        run.connection.problem = "connection refused"
        follow(run, "llm")
        await asyncio.sleep(20.0)
        assert run.names() is None
        run.connection.problem = ""
        await asyncio.sleep(40.0)
        assert run.names() == []
        assert ("ns", "llm") in run.woken

    drive(body)


def test_a_silent_stream_is_begun_anew() -> None:
    async def body(run: Run) -> None:
        follow(run, "llm")
        await asyncio.sleep(80.0)
        run.connection.report(POD, "BOOKMARK", {"metadata": {}})
        await asyncio.sleep(80.0)
        assert len(run.connection.times(WATCH)) == 1, "a bookmark says that it works"
        await asyncio.sleep(100.0)
        assert len(run.connection.times(WATCH)) >= 2

    drive(body)


def test_a_watch_that_dies_begins_anew() -> None:
    async def body(run: Run) -> None:
        follow(run, "llm")
        await asyncio.sleep(1.0)
        (part,) = run.supervisor.parts("pods")
        assert part.task is not None
        part.task.cancel()
        await asyncio.sleep(0.1)
        assert run.names() is None, "not trusted meanwhile"
        run.connection.put(POD, pod("a", app="llm"))
        await asyncio.sleep(5.0)
        assert run.names() == ["a"]

    drive(body)
