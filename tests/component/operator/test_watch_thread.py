"""A watch thread that ends leaves no connection open: the operator begins a new one after every failure."""

import asyncio
import gc

import pytest

from inference_operator.core.kinds import CONFIG_MAP, SERVICE, Kind, Object
from inference_operator.shell.connection import Connection
from inference_operator.shell.kopf_watch import Watch
from operator_cluster import Cluster, eventually


class Listed:
    """The kinds whose streams are open."""

    def __init__(self) -> None:
        self.kinds: set[Kind] = set()
        self.changed = asyncio.Event()

    def on_event(self, kind: Kind, gone: bool, body: Object) -> None:
        del kind, gone, body

    def on_listed(self, watch: Watch, kind: Kind) -> None:
        del watch
        self.kinds.add(kind)
        self.changed.set()

    def on_end(self, watch: Watch, problem: str, *, not_found: bool = False) -> None:
        raise AssertionError((watch, problem, not_found))


async def watch_and_abandon(cluster: Cluster) -> Watch:
    """Watch two kinds until both streams are open, and abandon the watch."""
    connection = await Connection.open(str(cluster.kubeconfig()))
    listed = Listed()
    watch = Watch(connection, (CONFIG_MAP, SERVICE), (), listed)
    async with asyncio.timeout(60):
        while listed.kinds != {CONFIG_MAP, SERVICE}:
            listed.changed.clear()
            await listed.changed.wait()
        watch.abandon()
    await connection.close()
    return watch


@pytest.mark.filterwarnings("error::ResourceWarning")
def test_an_abandoned_watch_closes_its_connections(cluster: Cluster) -> None:
    watch = asyncio.run(watch_and_abandon(cluster))
    eventually(lambda: watch.has_ended, "the thread's end")
    gc.collect()  # an open socket without an owner warns here, which fails the test
