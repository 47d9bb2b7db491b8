"""Flow control through the real Envoy: chat before batch, the batch subscriber beside chat, a pool at zero, a
picker that ends with a queue."""

import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from batch_stage import BatchProcess
from batch_subscriber.jobs import Cause, Job
from batch_subscriber.opening import open_results
from batch_subscriber.queues.sqlite import SqliteQueue
from headroom_cli.demo.api import Manifest, wait_for
from headroom_cli.demo.coexistence import SMALL_WITH_PROXY, applied, pool, server_deployment, user_picker
from headroom_cli.demo.load import MODEL, Once
from headroom_cli.demo.scenarios import LIMIT_S, picker_page
from headroom_cli.demo.stage import Stage
from inference_api import names
from model_server_sim.client import Ask, InferenceClient, Result

NAME = "shared"
CHAT, BATCH, NIGHTLY = "shared-chat", "shared-batch", "nightly"
SERVERS, AT_ONCE = 3, 4
"""Model servers, and requests that each serves at a time."""
QUEUED_BATCH = 10
"""Batch requests that may wait."""
CHAT_HEADERS = {names.OBJECTIVE_HEADER: CHAT}
SLO_FACTOR = 3.0
"""How much longer a chat request may take on the full pool than on the empty one, of medians."""
BACK_AFTER_S = 180.0
RUNNING = re.compile(r"^vllm:num_requests_running\{.*\} (\S+)$", re.MULTILINE)

CONFIG: Manifest = {
    "plugins": [
        {"type": "concurrency-detector", "parameters": {"maxConcurrency": AT_ONCE}},
        {"type": "active-request-scorer"},
    ],
    "flowControl": {
        "saturationDetector": {"pluginRef": "concurrency-detector"},
        "priorityBands": [{"priority": -10, "maxRequests": QUEUED_BATCH}],
    },
}


def objective(name: str, priority: int) -> Manifest:
    return {
        "apiVersion": f"{names.OBJECTIVE_GROUPS[0]}/{names.OBJECTIVE_VERSION}",
        "kind": names.OBJECTIVE_KIND,
        "metadata": {"name": name},
        "spec": {"priority": priority, "poolRef": {"name": NAME}},
    }


def slow_servers(stage: Stage) -> Manifest:
    """Return the pool's Deployment: an answer of 32 tokens takes most of a second, whatever the load."""
    deployment = server_deployment(stage, NAME)
    deployment["spec"]["replicas"] = SERVERS
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    server["args"] = [
        *server["args"], f"--model={NIGHTLY}", "--iteration-s=0.025", f"--max-num-seqs={AT_ONCE}",
    ]  # fmt: skip
    return deployment


@pytest.fixture(scope="module")
def shared(stage: Stage) -> Iterator[Stage]:
    """A pool of three servers with flow control, which batch and chat share."""
    spec = {
        **SMALL_WITH_PROXY,
        "config": CONFIG,
        "flowControl": {"enabled": True, "modelObjectives": [{"model": NIGHTLY, "objective": BATCH}]},
    }
    made = stage.beside(NAME)
    manifests = [
        objective(CHAT, 10), objective(BATCH, -10), user_picker(NAME, spec), pool(NAME), slow_servers(stage),
    ]  # fmt: skip
    with applied(made, manifests):
        made.await_condition("Ready", "True", limit_s=3 * LIMIT_S)
        await_endpoints(made, SERVERS)
        yield made


def page(stage: Stage, path: str) -> Any:
    return picker_page(stage.picker_pod()["status"]["podIP"], path)


def await_endpoints(stage: Stage, count: int) -> None:
    def ready() -> bool:
        endpoints = page(stage, "/debug/state")["router"]["endpoints"]
        return sum(bool(each["ready"]) for each in endpoints) == count

    wait_for(f"{count} ready endpoints", ready, limit_s=2 * LIMIT_S, every_s=0.2)


def await_queued(stage: Stage, count: int, limit_s: float = LIMIT_S) -> Any:
    def queued() -> Any:
        found = page(stage, "/debug/queue")
        return found if found["requests"] == count else None

    return wait_for(f"{count} queued requests", queued, limit_s=limit_s, every_s=0.1)[0]


def chat(number: int, tokens: int = 32) -> Ask:
    return Ask(
        model=MODEL, prompt=f"Chat {number}.", max_tokens=tokens, headers=CHAT_HEADERS,
        extra={"ignore_eos": True},
    )  # fmt: skip


def batch(number: int) -> Ask:
    """Return a request that names no objective: its model has one."""
    return Ask(model=NIGHTLY, prompt=f"Batch {number}.", max_tokens=32, extra={"ignore_eos": True})


class Shared:
    """Chat and batch clients on one pool."""

    def __init__(self, client: InferenceClient) -> None:
        self._client = client
        self.refusals: list[Result] = []
        self.over = asyncio.Event()
        """Set when batch clients are to begin no more work."""
        self.shed = asyncio.Event()

    async def chat(self, count: int, begin: int = 0) -> list[Result]:
        """Send requests one after the other."""
        return [await self._client.send(chat(begin + number)) for number in range(count)]

    async def batch(self, worker: int) -> list[Result]:
        """Send requests one after the other, each as often as it takes, when Retry-After says."""
        done: list[Result] = []
        while not self.over.is_set() or not done:
            result = await self._client.send(batch(1000 * worker + len(done)))
            while result.status == 429:
                self.refusals.append(result)
                self.shed.set()
                await asyncio.sleep(int(result.headers["retry-after"]))
                result = await self._client.send(batch(1000 * worker + len(done)))
            done.append(result)
        return done


def median_s(results: list[Result]) -> float:
    return statistics.median(each.end - each.start for each in results)


def test_chat_keeps_its_slo_while_batch_is_shed_and_completes_later(shared: Stage) -> None:
    url = shared.proxy_url()

    async def run() -> tuple[list[Result], list[Result], list[list[Result]], list[Result]]:
        async with InferenceClient(url, timeout_s=120) as client:
            clients = Shared(client)
            alone = await clients.chat(8)
            workers = [asyncio.create_task(clients.batch(worker)) for worker in range(40)]
            async with asyncio.timeout(LIMIT_S):
                await clients.shed.wait()  # the pool and the queue of batch are full
            loaded = await clients.chat(16, begin=100)
            clients.over.set()
            async with asyncio.timeout(BACK_AFTER_S):
                served = await asyncio.gather(*workers)
            return alone, loaded, served, clients.refusals

    alone, loaded, served, refusals = asyncio.run(run())
    assert [each.error for each in [*alone, *loaded] if not each.ok] == []
    assert median_s(loaded) <= SLO_FACTOR * median_s(alone)
    assert [each.error for worker in served for each in worker if not each.ok] == []
    assert len(served) == 40
    assert len(refusals) >= 40 - SERVERS * AT_ONCE - QUEUED_BATCH
    for refused in refusals:
        assert 1 <= int(refused.headers["retry-after"]) <= 300
        assert refused.headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
        assert json.loads(refused.text)["error"]["message"]


async def running_sequences(stage: Stage) -> float:
    """Return the sequences that the pool's model servers compute."""
    total = 0.0
    async with aiohttp.ClientSession() as session:
        for server in stage.servers():
            async with session.get(f"http://{server['status']['podIP']}:8000/metrics") as response:
                text = await response.text()
            total += sum(float(value) for value in RUNNING.findall(text))
    return total


def nightly_job(number: int, group: str = "", tokens: int = 32) -> Job:
    body = {"model": NIGHTLY, "prompt": f"Job {number}.", "max_tokens": tokens, "ignore_eos": True}
    return Job(
        id=f"job-{number}",
        generation="g",
        path="/v1/completions",
        body=json.dumps(body).encode(),
        group=group,
        submitted_at=time.time(),
    )


def test_the_subscriber_yields_to_chat_and_a_cancel_frees_the_engines(shared: Stage, tmp_path: Path) -> None:
    url = shared.proxy_url()
    picker = f"http://{shared.picker_pod()['status']['podIP']}:{names.METRICS_PORT}/metrics"

    async def until(look: Callable[[], Awaitable[bool]]) -> float:
        """Return the seconds until `look` returns True."""
        begun = time.monotonic()
        async with asyncio.timeout(BACK_AFTER_S):
            while not await look():  # noqa: ASYNC110 - a cluster is awaited
                await asyncio.sleep(0.05)
        return time.monotonic() - begun

    async def is_empty() -> bool:
        return (await queue.backlog()).oldest_submitted_at is None

    async def run() -> None:
        batch = BatchProcess(tmp_path)
        results = await open_results(f"file:{tmp_path}/results")
        await queue.put([nightly_job(number) for number in range(60)])
        async with InferenceClient(url, timeout_s=120) as client:
            clients = Shared(client)
            alone = await clients.chat(8)
            await batch.start(
                f"--queue=sqlite:{tmp_path}/q.db",
                f"--results=file:{tmp_path}/results",
                f"--gateway={url}",
                f"--objective={BATCH}",
                f"--picker-metrics={picker}",
                "--http=",
            )
            try:
                await until(lambda: is_running(1))
                beside = await clients.chat(8, begin=100)
                await until(is_empty)
                found = [await results.read(f"job-{number}", "g") for number in range(60)]
                # Long ones, whose answers take half a minute.
                await queue.put([nightly_job(100 + number, "long", 1100) for number in range(4)])
                await until(lambda: is_running(4))
                await queue.cancel("long")
                took = await until(lambda: is_running(0, most=True))
                await until(is_empty)
                cancelled = [await results.read(f"job-{100 + number}", "g") for number in range(4)]
            finally:
                await batch.end()
                await results.close()
                await queue.close()
        print(f"cancelled inferences had ended after {took:.2f} s")
        assert took < 10.0
        assert [each.error for each in [*alone, *beside] if not each.ok] == []
        assert median_s(beside) <= SLO_FACTOR * median_s(alone)
        assert [None if one is None else one.status for one in found] == [200] * 60
        ended = [one.finished_at for one in found if one is not None]
        assert statistics.mean(ended[:20]) < statistics.mean(ended[20:40]) < statistics.mean(ended[40:])
        assert [one and one.cause for one in cancelled] == [Cause.CANCELLED] * 4

    async def is_running(count: int, *, most: bool = False) -> bool:
        running = await running_sequences(shared)
        return running <= count if most else running >= count

    queue = SqliteQueue(tmp_path / "q.db")
    asyncio.run(run())


def send_chat(once: Once, number: int, tokens: int = 32) -> Result:
    return once(lambda client: client.send(chat(number, tokens)))


def hold_all_places(url: str, workers: ThreadPoolExecutor) -> list["Future[Result]"]:
    """Send as many long chat requests as the pool serves at a time."""
    once = Once(url, timeout_s=240)
    return [workers.submit(send_chat, once, 500 + number, 1100) for number in range(SERVERS * AT_ONCE)]


def test_each_queued_request_gets_a_retryable_answer_when_its_picker_ends(shared: Stage) -> None:
    url = shared.proxy_url()
    once = Once(url, timeout_s=240)
    with ThreadPoolExecutor(SERVERS * AT_ONCE + 6) as workers:
        held = hold_all_places(url, workers)
        wait_for(
            "a full pool",
            lambda: page(shared, "/debug/state")["router"]["inFlight"] == SERVERS * AT_ONCE,
            limit_s=LIMIT_S,
        )
        waiting = [workers.submit(send_chat, once, number) for number in range(6)]
        queue = await_queued(shared, 6)
        assert [band["requests"] for band in queue["bands"]] == [6, 0, 0]
        shown = subprocess.run(
            [
                str(Path(sys.executable).parent / "headroom"), "top", NAME, "--once",
                f"--kubeconfig={shared.cluster.kubeconfig}",
            ],
            capture_output=True, text=True, timeout=100, check=True,
        ).stdout  # fmt: skip
        assert "Saturation   1\n" in shown
        assert "Queue        6 requests" in shown

        picker = shared.picker_pod()["metadata"]["name"]
        os.kill(shared.cluster.container_pids(shared.namespace, picker, "epp")[0], signal.SIGTERM)
        for each in waiting:
            refused = each.result(timeout=LIMIT_S)
            assert refused.status == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.headers["x-llm-d-request-dropped-reason"] == "rejected-shutting-down"
        assert [each.result(timeout=240).error for each in held] == [""] * len(held)
    shared.await_condition("PickerReady", "True", limit_s=2 * LIMIT_S)
    await_endpoints(shared, SERVERS)


def test_a_request_to_a_pool_at_zero_is_answered_by_the_first_server(shared: Stage) -> None:
    deployment = shared.path("Deployment", NAME)
    shared.api.patch(deployment, {"spec": {"replicas": 0}})
    await_endpoints(shared, 0)
    answers: list[Result] = []
    once = Once(shared.proxy_url(), timeout_s=240)
    asking = threading.Thread(target=lambda: answers.append(send_chat(once, 900)))
    asking.start()
    assert await_queued(shared, 1)["poolEmpty"]
    shared.api.patch(deployment, {"spec": {"replicas": 1}})
    asking.join(timeout=2 * LIMIT_S)
    (answer,) = answers
    assert (answer.status, answer.error) == (200, "")
