"""The watch of a pool against a real API server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from cluster_client.access import ApiAccess
from cluster_client.api import KubernetesApi
from endpoint_picker.datalayer.kubernetes_watch import PoolWatch
from endpoint_picker.datalayer.table import Endpoint
from pool_space import Space, until

LABELS = {"app": "vllm"}


@dataclass
class Seen:
    """What a watch handed on."""

    watch: PoolWatch = field(init=False)
    ready: set[str] = field(default_factory=set)
    calls: int = 0
    config: list[str] = field(default_factory=list)
    priorities: list[str] = field(default_factory=list)

    def take(self, endpoints: list[Endpoint]) -> None:
        self.calls += 1
        self.ready = {each.hostport for each in endpoints if each.ready}


@asynccontextmanager
async def watching(space: Space, pool: str = "pool") -> AsyncIterator[Seen]:
    api = KubernetesApi(ApiAccess.from_kubeconfig(space.kubeconfig))
    seen = Seen()
    seen.watch = PoolWatch(
        api,
        namespace=space.namespace,
        pool=pool,
        on_endpoints=seen.take,
        config_map="picker-config",
        on_config=seen.config.append,
        priorities_map="picker-priorities",
        on_priorities=seen.priorities.append,
    )
    task = asyncio.create_task(seen.watch.run())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()


async def done(act: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    await asyncio.to_thread(lambda: act(*args, **kwargs))


async def test_endpoints_follow_pods_as_they_come_get_ready_and_go(space: Space) -> None:
    await done(space.pool, "pool", LABELS, 8000, 8001)
    await done(space.pod, "early", LABELS, "10.0.0.1")
    await done(space.pod, "other", {"app": "else"}, "10.0.0.9")
    async with watching(space) as seen:
        await until(lambda: seen.ready == {"10.0.0.1:8000", "10.0.0.1:8001"})
        assert seen.watch.synced
        await done(space.pod, "late", LABELS, "10.0.0.2", ready=False)
        await done(space.set_status, "late", "10.0.0.2", ready=True)
        await until(lambda: len(seen.ready) == 4)
        await done(space.set_status, "early", "10.0.0.1", ready=False)
        await until(lambda: seen.ready == {"10.0.0.2:8000", "10.0.0.2:8001"})
        await done(space.delete_pod, "late")
        await until(lambda: seen.ready == set())
        assert seen.watch.error == ""


async def test_a_changed_pool_changes_the_endpoints(space: Space) -> None:
    await done(space.pool, "pool", LABELS)
    await done(space.pod, "one", LABELS, "10.0.0.1")
    await done(space.pod, "two", {"app": "sglang"}, "10.0.0.2")
    async with watching(space) as seen:
        await until(lambda: seen.ready == {"10.0.0.1:8000"})
        await done(space.patch_pool, "pool", {"targetPorts": [{"number": 9000}]})
        await until(lambda: seen.ready == {"10.0.0.1:9000"})
        await done(space.patch_pool, "pool", {"selector": {"matchLabels": {"app": "sglang"}}})
        await until(lambda: seen.ready == {"10.0.0.2:9000"})
        await done(space.pod, "three", {"app": "sglang"}, "10.0.0.3")
        await until(lambda: seen.ready == {"10.0.0.2:9000", "10.0.0.3:9000"})


async def test_without_a_pool_there_is_nothing_and_a_deleted_one_clears_all(space: Space) -> None:
    await done(space.pod, "one", LABELS, "10.0.0.1")
    async with watching(space) as seen:
        await until(lambda: seen.calls > 0)
        assert not seen.watch.pool_found
        assert not seen.watch.synced
        await done(space.pool, "neighbour", LABELS)
        await done(space.pool, "pool", LABELS)
        await until(lambda: seen.ready == {"10.0.0.1:8000"})
        await done(space.delete_pool, "pool")
        await until(lambda: seen.ready == set())
        assert not seen.watch.pool_found
        await done(space.pool, "pool", LABELS, 8002)
        await until(lambda: seen.ready == {"10.0.0.1:8002"})


async def test_config_maps_are_handed_on_when_their_text_changes(space: Space) -> None:
    await done(space.config_map, "picker-config", {"config.yaml": "one"})
    await done(space.config_map, "neighbour", {"config.yaml": "not ours"})
    async with watching(space) as seen:
        await until(lambda: seen.config == ["one"])
        await done(space.patch_config_map, "picker-config", {"another-key": "x"})
        await done(space.patch_config_map, "picker-config", {"config.yaml": "two"})
        await until(lambda: seen.config == ["one", "two"])
        assert seen.priorities == []
        await done(space.config_map, "picker-priorities", {"table.json": "{}"})
        await until(lambda: seen.priorities == ["{}"])
