"""headroom-trainer as a process: samples in, bundles out, killed and started again."""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from latency_bundle import published
from latency_contract.bundles import load, load_newest, versions
from latency_contract.sample_wire import (
    ADD_PATH,
    ADD_STREAM_PATH,
    MAX_BATCH_ROWS,
    Added,
    decode_added,
    encode_batch,
)
from latency_predictor.training.journal import Damage, read
from latency_predictor.training.paths import FLUSH_PATH, IMPORT_PATH, PULL_PATH, STATUS_PATH
from latency_samples import batch
from lean_grpc import CallError, Channel, StatusCode

#: Longest wait for anything, seconds: machines that run tests may be busy.
LIMIT_S = 90


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def children_of(trainer: "Trainer") -> list[int]:
    assert trainer.process is not None
    pid = trainer.process.pid
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Trainer:
    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.models = folder / "models"
        self.port = free_port()
        self.http = f"http://127.0.0.1:{free_port()}"
        self.arguments = arguments
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "latency_predictor.training.main",
            f"--data={self.folder / 'samples'}",
            f"--models={self.models}",
            f"--listen=127.0.0.1:{self.port}",
            f"--http={self.http.removeprefix('http://')}",
            *self.arguments,
        )
        await self.eventually(lambda status: status["ready"])

    async def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(LIMIT_S):
            return await self.process.wait()

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[Channel]:
        async with Channel([f"127.0.0.1:{self.port}"]) as channel:
            yield channel

    async def status(self) -> dict[str, Any]:
        async with self.channel() as channel:
            answer = await channel.unary(STATUS_PATH, b"", timeout=LIMIT_S, wait_for_ready=True)
        found: dict[str, Any] = json.loads(answer)
        return found

    async def eventually(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(LIMIT_S):
            while True:
                status = await self.status()
                if wanted(status):
                    return status
                await asyncio.sleep(0.1)

    async def add(self, count: int, seed: int = 1) -> Added:
        made = encode_batch(batch(count, seed=seed, at_s=time.time() - 60))
        async with self.channel() as channel:
            return decode_added(await channel.unary(ADD_PATH, made, timeout=LIMIT_S))


@pytest.fixture
async def trainer(tmp_path: Path) -> AsyncIterator[Trainer]:
    made = Trainer(tmp_path)
    await made.start()
    yield made
    await made.stop()


async def test_samples_become_a_bundle_and_the_metrics_say_so(trainer: Any) -> None:
    assert await trainer.add(150) == Added(150, 0, 0)
    status = await trainer.eventually(lambda each: each["state"] == "trained")
    bundle, errors = load_newest(trainer.models)
    assert errors == []
    assert bundle is not None
    assert bundle.manifest.version == status["version"]
    assert set(status["targets"]) == {"ttft", "tpot", "e2e"}
    async with aiohttp.ClientSession() as session, session.get(f"{trainer.http}/metrics") as answer:
        page = await answer.text()
    assert 'headroom_trainer_state{state="trained"} 1' in page
    assert 'headroom_trainer_received_total{outcome="accepted"} 150' in page
    assert await trainer.stop() == 0


async def test_batches_over_a_stream_have_an_answer_each(trainer: Any) -> None:
    async with trainer.channel() as channel, channel.stream(ADD_STREAM_PATH) as stream:
        for count in (3, 4):
            await stream.send(encode_batch(batch(count)))
        stream.end()
        answers = [decode_added(each) async for each in stream]
    # The samples of `latency_samples` are of 2025: too old for a trainer on the real clock.
    assert answers == [Added(0, 3, 0), Added(0, 4, 0)]


async def test_another_schema_and_no_samples_at_all_are_refused(trainer: Any) -> None:
    encoded = encode_batch(batch(3))
    async with trainer.channel() as channel:
        with pytest.raises(CallError) as caught:
            await channel.unary(ADD_PATH, encoded[:4] + b"\xff" * 8 + encoded[12:], timeout=LIMIT_S)
        assert caught.value.code is StatusCode.FAILED_PRECONDITION
        assert "must be of one version" in caught.value.message
        with pytest.raises(CallError) as caught:
            await channel.unary(ADD_PATH, b"nonsense", timeout=LIMIT_S)
        assert caught.value.code is StatusCode.INVALID_ARGUMENT
    assert (await trainer.status())["state"] == "warming"


async def test_after_kill_9_in_the_middle_of_samples_it_goes_on(trainer: Any) -> None:
    """Both processes die while batches come in; the journal may end within a record."""

    async def flood() -> None:
        for seed in range(10_000):
            await trainer.add(20, seed)

    sending = asyncio.ensure_future(flood())
    await trainer.eventually(lambda each: each["received"]["accepted"] >= 200)
    await trainer.kill()
    with pytest.raises((CallError, OSError)):
        await sending
    path = max((trainer.folder / "samples").iterdir())
    with path.open("ab") as file:
        file.write(b"HPJ1\0\0")  # what a kill within a write leaves
    kept = sum(len(each) for each in read(trainer.folder / "samples", Damage()))
    assert kept >= 200
    await trainer.start()
    status = await trainer.eventually(lambda each: each["samples"] >= kept)
    assert status["damaged_files"] >= 1
    await trainer.add(100, seed=77)
    await trainer.eventually(lambda each: each["state"] == "trained")


async def test_a_learning_process_that_is_killed_while_it_publishes_leaves_whole_bundles(
    trainer: Any,
) -> None:
    """It is killed again and again while bundles are published; every visible one can be loaded."""
    await trainer.add(150)
    await trainer.eventually(lambda each: each["state"] == "trained")
    for turn in range(3):
        children = children_of(trainer)
        starts = (await trainer.status())["learner_starts"]
        await trainer.add(200, seed=10 + turn)
        for child in children:
            os.kill(child, signal.SIGKILL)
        await trainer.eventually(lambda each, before=starts: each["learner_starts"] > before)
        for version in versions(trainer.models):
            load(trainer.models, version)
    await trainer.add(50, seed=99)
    status = await trainer.eventually(lambda each: each["state"] == "trained" and each["samples"] >= 150)
    assert status["version"]


async def test_a_flood_is_shed_and_counted_and_status_still_answers(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, "--rows-per-second=1000")
    await trainer.start()
    try:
        answers = [await trainer.add(500, seed) for seed in range(30)]
        shed = sum(each.shed for each in answers)
        assert shed > 0
        status = await trainer.status()
        assert status["received"]["shed"] == shed
        assert status["received"]["accepted"] == sum(each.accepted for each in answers)
        assert MAX_BATCH_ROWS > 500
    finally:
        await trainer.stop()


async def test_a_newer_trainer_takes_over_samples_and_bundles(trainer: Any, tmp_path: Path) -> None:
    await trainer.add(150)
    await trainer.eventually(lambda each: each["state"] == "trained")
    newer = Trainer(tmp_path / "newer", f"--peer=127.0.0.1:{trainer.port}")
    await newer.start()
    try:
        status = await newer.status()
        assert status["samples"] == 150
        assert status["version"] in versions(trainer.models)
        assert status["state"] == "trained"
        assert status["peer_error"] == ""
    finally:
        await newer.stop()


async def test_a_peer_that_is_away_does_not_keep_it_from_starting(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, f"--peer=127.0.0.1:{free_port()}")
    await trainer.start()
    try:
        assert "127.0.0.1" in (await trainer.status())["peer_error"]
    finally:
        await trainer.stop()


async def test_an_export_seeds_another_pool(trainer: Any, tmp_path: Path) -> None:
    await trainer.add(150)
    await trainer.eventually(lambda each: each["state"] == "trained")
    async with trainer.channel() as channel, channel.stream(PULL_PATH) as stream:
        stream.end()
        export = [each async for each in stream]
    other = Trainer(tmp_path / "other")
    await other.start()
    try:
        async with other.channel() as channel, channel.stream(IMPORT_PATH) as stream:
            for message in export:
                await stream.send(message)
            stream.end()
            answers = [json.loads(each) async for each in stream]
        assert answers == [{"bundles": 1, "samples": 150, "errors": []}]
        status = await other.eventually(lambda each: each["state"] in {"seeded", "trained"})
        assert status["version"] in versions(other.models)
        async with other.channel() as channel:
            await channel.unary(FLUSH_PATH, b"", timeout=LIMIT_S)
        await other.eventually(lambda each: each["samples"] == 0)
        assert (await other.status())["state"] in {"seeded", "trained"}
    finally:
        await other.stop()


async def test_the_endpoints_of_the_other_projects_client(trainer: Any) -> None:
    """202 for training data, model info, trees; a bad entry does not cost the others."""
    entry = {
        "kv_cache_percentage": 0.5,
        "input_token_length": 100,
        "num_request_waiting": 1,
        "num_request_running": 2,
        "actual_ttft_ms": 120.0,
        "actual_tpot_ms": 12.0,
        "num_tokens_generated": 0,
        "prefix_cache_score": 0.25,
        "pod_type": "",
        "prefill_tokens_in_flight": 0,
        "decode_tokens_in_flight": 0,
    }
    # Equal samples of one time would all be held out, or none of them.
    entries = [{**entry, "input_token_length": 100 + each} for each in range(120)]
    async with aiohttp.ClientSession(trainer.http) as session:
        async with session.get("/readyz") as answer:
            assert (answer.status, await answer.json()) == (200, {"status": "ready"})
        async with session.post("/add_training_data_bulk", json={"entries": entries}) as answer:
            assert answer.status == 202
            assert await answer.json() == {"message": "Accepted 120 training samples."}
        bad = {**entry, "kv_cache_percentage": 50}
        async with session.post("/add_training_data_bulk", json={"entries": [entry, bad]}) as answer:
            assert answer.status == 202
            assert (await answer.json())["message"] == "Accepted 1 training samples."
        async with session.post("/add_training_data_bulk", json={"entries": [bad]}) as answer:
            assert answer.status == 422
        async with session.post("/add_training_data_bulk", data=b"{") as answer:
            assert answer.status == 400
        await trainer.eventually(lambda each: each["state"] == "trained")
        async with session.get("/model/download/info") as answer:
            info = await answer.json()
            assert info["model_type"] == "xgboost"
            assert info["quantile"] == 0.9
            assert info["model_status"]["ttft"] == "ready"
        async with session.get("/model/ttft/xgb/json") as answer:
            assert answer.status == 200
            assert isinstance(await answer.json(), list)
        async with session.get("/model/lines/xgb/json") as answer:
            assert answer.status == 404


async def test_the_port_for_peers_gives_and_takes_nothing(tmp_path: Path) -> None:
    port, http = free_port(), free_port()
    served = Trainer(
        tmp_path / "served", f"--serve-peers=127.0.0.1:{port}", f"--status-http=127.0.0.1:{http}"
    )
    await served.start()
    try:
        await served.add(150)
        await served.eventually(lambda status: status["state"] == "trained")
        newer = Trainer(tmp_path / "newer", f"--peer=127.0.0.1:{port}")
        await newer.start()
        assert (await newer.status())["samples"] > 0
        await newer.stop()
        async with Channel([f"127.0.0.1:{port}"]) as channel:
            for path in (ADD_PATH, FLUSH_PATH, IMPORT_PATH):
                with pytest.raises(CallError) as refused:
                    await channel.unary(path, b"", timeout=LIMIT_S)
                assert refused.value.code is StatusCode.UNIMPLEMENTED
        async with aiohttp.ClientSession(f"http://127.0.0.1:{http}") as session:
            async with session.get("/readyz") as answer:
                assert answer.status == 200
            async with session.post("/flush") as answer:
                assert answer.status == 404
    finally:
        await served.stop()


async def test_an_archive_carries_what_was_learned_where_no_older_trainer_runs(tmp_path: Path) -> None:
    kept = tmp_path / "volume" / "pool.export"
    first = Trainer(tmp_path / "first", f"--archive={kept}")
    await first.start()
    await first.add(150)
    learned = await first.eventually(lambda status: status["state"] == "trained")
    assert await first.stop() == 0
    second = Trainer(tmp_path / "second", f"--archive={kept}", f"--peer=127.0.0.1:{free_port()}")
    await second.start()
    try:
        status = await second.status()
        assert (status["version"], status["samples"]) == (learned["version"], learned["samples"])
    finally:
        await second.stop()
    kept.write_bytes(b"not an export")
    third = Trainer(tmp_path / "third", f"--archive={kept}")
    await third.start()
    try:
        status = await third.status()
        assert status["state"] == "warming"
        assert "this is no export" in status["archive_error"]
    finally:
        await third.stop()


async def test_a_follower_passes_samples_on_and_serves_the_elected_trainers_bundles(
    trainer: Any, tmp_path: Path
) -> None:
    follower = Trainer(tmp_path / "follower", f"--follow=127.0.0.1:{trainer.port}")
    await follower.start()
    try:
        assert await follower.add(150) == Added(150, 0, 0)
        await trainer.eventually(lambda each: each["state"] == "trained" and each["samples"] >= 150)
        status = await follower.eventually(lambda each: each["state"] == "trained")
        assert status["follows"] == f"127.0.0.1:{trainer.port}"
        bundle, errors = load_newest(follower.models)
        assert bundle is not None
        assert errors == []
        assert bundle.manifest.version in versions(trainer.models)
        assert not list(read(follower.folder / "samples", Damage()))
        async with follower.channel() as channel, channel.stream(IMPORT_PATH) as stream:
            stream.end()
            with pytest.raises(CallError, match="import into the trainer that learns"):
                [each async for each in stream]
        # While the elected trainer is away its bundle stays, and samples wait for it.
        await trainer.kill()
        await follower.eventually(lambda each: each["error"] != "")
        assert load_newest(follower.models)[0] is not None
        assert await follower.add(50, seed=5) == Added(50, 0, 0)
        await trainer.start()
        await trainer.eventually(lambda each: each["samples"] >= 200)
        await follower.eventually(lambda each: each["error"] == "")
    finally:
        await follower.stop()


async def test_a_follower_has_the_elected_trainers_bundle_and_no_later_one(
    trainer: Any, tmp_path: Path
) -> None:
    """After another election the newest bundle here may be later than the newest there."""
    models = tmp_path / "follower" / "models"
    later = published(models, 9_999_999_999_999)
    follower = Trainer(tmp_path / "follower", f"--follow=127.0.0.1:{trainer.port}")
    await follower.start()
    try:
        assert versions(models) == [later]
        await trainer.add(150)
        await follower.eventually(lambda each: each["versions"] and later not in each["versions"])
    finally:
        await follower.stop()
