"""The operator as its command runs it, in this process, against an API server in the same event loop."""

import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from http_api import HttpApi
from inference_operator import main
from inference_operator.core.kinds import CONFIG_MAP, DEPLOYMENT, PICKER, POD, POOL, ROLE_BINDING, Object
from inference_operator.core.settings import Settings
from observations import pool_body

LIMIT_SECONDS = 60.0


@pytest.fixture(autouse=True)
def quiet_libraries() -> Iterator[None]:
    """Keep kopf's own complaints about watches that a test cuts out of the report."""
    kopf = logging.getLogger("kopf")
    level = kopf.level
    kopf.setLevel(logging.CRITICAL)
    yield
    kopf.setLevel(level)


@dataclass
class Operator:
    """A running operator and its API server."""

    api: HttpApi
    port: int
    task: "asyncio.Task[int]"

    async def page(self, path: str) -> tuple[int, str]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.port}{path}") as answer,
        ):
            return answer.status, await answer.text()

    async def health(self) -> Object:
        found: Object = json.loads((await self.page("/readyz"))[1])
        return found

    async def ready(self) -> None:
        async with asyncio.timeout(LIMIT_SECONDS):
            while (await self.page("/readyz"))[0] != 200:  # noqa: ASYNC110 - HTTP has no event to wait for
                await asyncio.sleep(0.05)

    def object(self, path: str) -> Object | None:
        return self.api.store.objects.get(path)


async def until(look: Callable[[], object], what: str) -> None:
    """Wait until `look` returns something true."""
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            while not look():  # noqa: ASYNC110 - the operator's writes have no event to wait for
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"never: {what}") from None


@asynccontextmanager
async def operator(
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    before: Callable[[HttpApi], None] = lambda _: None,
    **settings: object,
) -> AsyncIterator[Operator]:
    caplog.set_level(logging.INFO, "inference_operator")
    async with HttpApi() as api:
        before(api)
        made = Settings(
            kubeconfig=str(api.kubeconfig(folder)),
            health_port=0,
            epp_image="epp:1",
            **settings,  # type: ignore[arg-type]
        )
        caplog.clear()
        task = asyncio.create_task(main.run(made))
        await until(lambda: [r for r in caplog.records if hasattr(r, "health")], "it listens")
        address = next(r.health for r in caplog.records if hasattr(r, "health"))
        port = urlsplit(address).port or 0
        try:
            yield Operator(api, port, task)
        finally:
            if not task.done():
                os.kill(os.getpid(), signal.SIGTERM)
            async with asyncio.timeout(LIMIT_SECONDS):
                assert await task == 0


def managed(name: str = "llm") -> Object:
    """Return a pool that is taken up at once."""
    return pool_body(name, metadata={"annotations": {"headroom.dev/managed": "true"}})


def test_a_pool_gets_its_picker_is_healed_and_goes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with operator(tmp_path, caplog) as run:
            await run.ready()
            await until(lambda: POOL.path() in run.api.watched, "pools are watched")
            run.api.put(POOL, managed())
            path = DEPLOYMENT.path("ns", "llm-epp")
            await until(lambda: run.object(path), "a Deployment")
            await until(lambda: (run.object(PICKER.path("ns", "llm")) or {}).get("status"), "a status")
            run.api.drop(CONFIG_MAP, "llm-epp-config")
            await until(lambda: run.object(CONFIG_MAP.path("ns", "llm-epp-config")), "the ConfigMap again")
            status, text = await run.page("/metrics")
            assert status == 200
            assert 'headroom_operator_writes_total{kind="Deployment"' in text
            run.api.drop(POOL, "llm")
            await until(lambda: run.object(POOL.path("ns", "llm")) is None, "the pool is gone")

    asyncio.run(body())


def test_health_tells_what_is_watched_and_what_is_denied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def deny(api: HttpApi) -> None:
        api.denied |= {("create", ROLE_BINDING.plural), ("list", POD.plural)}

    async def body() -> None:
        async with operator(tmp_path, caplog, deny) as run:
            await run.ready()
            assert (await run.page("/healthz"))[0] == 200
            told = await run.health()
            assert told["status"] == "ok"
            assert POOL.resource in told["watching"]
            assert told["rightsMissing"] == ["create rolebindings.rbac.authorization.k8s.io", "list pods"]

    asyncio.run(body())


def test_a_cut_watch_is_opened_again_and_what_was_missed_is_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with operator(tmp_path, caplog) as run:
            await run.ready()
            await until(lambda: POOL.path() in run.api.watched, "pools are watched")
            run.api.cut()
            run.api.put(POOL, managed())
            await until(lambda: run.object(DEPLOYMENT.path("ns", "llm-epp")), "a Deployment")

    asyncio.run(body())


def test_an_answer_that_kopf_does_not_survive_costs_one_restart_of_the_watch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with operator(tmp_path, caplog) as run:
            await run.ready()
            await until(lambda: POOL.path() in run.api.watched, "pools are watched")
            run.api.refused[POOL.path()] = 404
            run.api.cut()
            await until(lambda: "watches given up" in caplog.text, "the watch is given up")
            run.api.refused.clear()
            run.api.put(POOL, managed())
            await until(lambda: run.object(DEPLOYMENT.path("ns", "llm-epp")), "a Deployment")
            await run.ready()

    asyncio.run(body())


def test_without_an_api_server_the_operator_lives_and_is_not_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(api: HttpApi) -> None:
        api.refused["/apis/inference.networking.k8s.io/v1"] = 500

    async def body() -> None:
        async with operator(tmp_path, caplog, refuse) as run:
            await until(lambda: "resync failed" in caplog.text, "a failure")
            assert (await run.page("/healthz"))[0] == 200
            status, text = await run.page("/readyz")
            assert (status, json.loads(text)["status"]) == (503, "starting")
            run.api.refused.clear()
            await run.ready()

    asyncio.run(body())


def test_only_the_namespaces_that_are_named_are_watched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with operator(tmp_path, caplog, namespaces=("ns",)) as run:
            await run.ready()
            await until(lambda: POOL.path("ns") in run.api.watched, "pools of the namespace are watched")
            assert POOL.path() not in run.api.watched

    asyncio.run(body())


def test_a_health_port_in_use_ends_the_operator(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> int:
        async with HttpApi() as api:
            taken = int(api.url.rsplit(":", 1)[1])
            return await main.run(Settings(kubeconfig=str(api.kubeconfig(tmp_path)), health_port=taken))

    assert asyncio.run(body()) == 1
    assert "cannot listen on 127.0.0.1" in caplog.text


@pytest.mark.parametrize("content", [None, "[]", "kind: Config"])
def test_a_kubeconfig_that_cannot_be_used_ends_the_operator(
    content: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "kubeconfig"
    if content is not None:
        file.write_text(content)
    assert asyncio.run(main.run(Settings(kubeconfig=str(file)))) == 1
    assert f"--kubeconfig {file} cannot be used" in caplog.text


def test_outside_a_pod_a_kubeconfig_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert asyncio.run(main.run(Settings())) == 1
    assert "pass --kubeconfig FILE" in caplog.text


def test_a_lease_that_is_no_longer_renewed_is_renewed_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A dead part would let a younger installation take over while this one works on."""

    async def body() -> None:
        async with operator(tmp_path, caplog, lease_duration=3.0) as run:
            await run.ready()

            def renewals() -> int:
                return sum(call.method == "PATCH" and "/leases/" in call.path for call in run.api.store.calls)

            await until(renewals, "a renewal")
            next(task for task in asyncio.all_tasks() if task.get_name() == "lease").cancel()
            await until(lambda: "a background part ended" in caplog.text, "its end is noticed")
            before = renewals()
            await until(lambda: renewals() > before, "another renewal")

    asyncio.run(body())
