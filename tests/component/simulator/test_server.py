"""The real server over real sockets."""

import asyncio
import contextlib
import json
import signal
import socket
import sys

import aiohttp
import pytest

from inference_client import Ask, InferenceClient, LoadRun
from model_server_sim.main import main
from simulator_process import Start, new_host, spawn

FAST = ("--time-scale", "20")
LONG = {"ignore_eos": True}
MB = 1_000_000


@pytest.mark.parametrize("chat", [False, True])
async def test_streams_and_plain_answers_agree(start: Start, chat: bool) -> None:
    simulator = await start(*FAST, env={"POD_NAME": "server-7"})
    async with InferenceClient(simulator.url) as client:
        plain = await client.send(Ask(chat=chat, max_tokens=12, extra=LONG))
        stream = await client.send(Ask(chat=chat, max_tokens=12, extra=LONG, stream=True))
    assert (plain.error, stream.error) == ("", "")
    assert plain.text == stream.text != ""
    assert stream.chunks == 12 + chat + 3  # role, tokens, finish reason, usage, [DONE]
    assert plain.served_by == stream.served_by == "server-7"
    assert plain.usage == stream.usage
    assert plain.usage["completion_tokens"] == 12


async def test_a_repeated_prompt_is_cached(start: Start) -> None:
    simulator = await start(*FAST)
    async with InferenceClient(simulator.url) as client:
        results = [await client.send(Ask(prompt="x" * 6400)) for _ in range(2)]
    details = [r.usage["prompt_tokens_details"] for r in results]
    assert details == [{"cached_tokens": 0}, {"cached_tokens": 1584}]
    assert await simulator.metric("vllm:prefix_cache_hits_total") == 1584


async def test_a_next_turn_finds_the_blocks_of_the_answer_that_it_repeats(start: Start) -> None:
    simulator = await start(*FAST)
    said = [{"role": "user", "content": "Tell me of harbours. " * 10}]
    usages = []
    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            body = {"messages": said, "max_tokens": 100, "ignore_eos": True}
            async with session.post(simulator.url + "/v1/chat/completions", json=body) as response:
                fields = await response.json()
            usages.append(fields["usage"])
            said += [fields["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    first, cached = usages[0], usages[1]["prompt_tokens_details"]["cached_tokens"]
    assert first["prompt_tokens"] < cached <= first["prompt_tokens"] + first["completion_tokens"]
    assert cached > first["prompt_tokens"] + first["completion_tokens"] - 2 * 16


async def test_the_seed_decides_the_answers(start: Start) -> None:
    texts = []
    for seed in ("1", "1", "2"):
        simulator = await start(*FAST, "--seed", seed)
        async with InferenceClient(simulator.url) as client:
            texts.append((await client.send(Ask(max_tokens=None, chat=True))).text)
    assert texts[0] == texts[1] != texts[2]


async def test_metrics_move_with_the_load(start: Start) -> None:
    simulator = await start("--max-num-seqs", "4")
    status, page = await simulator.get("/metrics")
    assert status == 200
    assert 45_000 < len(page) < 56_000
    async with InferenceClient(simulator.url) as client:
        async with LoadRun(client, in_flight=12, make=lambda n: Ask(prompt=f"{n}" * 200)) as load:
            await simulator.until_metric("vllm:num_requests_running", lambda v: v == 4)
            await simulator.until_metric("vllm:num_requests_waiting", lambda v: v >= 6)
            await simulator.until_metric("vllm:kv_cache_usage_perc", lambda v: v > 0)
    assert load.failures() == []
    assert await simulator.metric("vllm:num_requests_running") == 0
    assert await simulator.metric("vllm:num_requests_waiting") == 0
    assert await simulator.metric("vllm:request_success_total") == len(load.results)


async def test_sigterm_turns_unready_serves_on_and_finishes_streams(start: Start) -> None:
    simulator = await start("--drain-seconds", "1")
    async with InferenceClient(simulator.url) as client:
        long = asyncio.create_task(client.send(Ask(stream=True, max_tokens=400, extra=LONG)))
        await simulator.until_metric("vllm:generation_tokens_total", lambda v: v > 0)
        simulator.process.send_signal(signal.SIGTERM)
        await simulator.until_health(503)
        late = await client.send(Ask(max_tokens=2))
        result = await long
    assert (late.error, result.error) == ("", "")
    assert late.headers["connection"] == "close"
    assert result.usage["completion_tokens"] == 400
    assert await simulator.exit_code() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_it_at_once(start: Start, number: signal.Signals) -> None:
    simulator = await start("--drain-seconds", "600")
    simulator.process.send_signal(number)
    await simulator.until_health(503)
    simulator.process.send_signal(number)
    assert await simulator.exit_code() == 128 + number


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_hangs_up_frees_its_blocks(start: Start, stream: bool) -> None:
    simulator = await start()
    ask = Ask(stream=stream, max_tokens=30_000, extra=LONG)
    async with aiohttp.ClientSession() as session:
        call = asyncio.create_task(session.post(simulator.url + ask.path, data=ask.body()))
        await simulator.until_metric("vllm:kv_cache_usage_perc", lambda v: v > 0)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            (await call).close()
    await simulator.until_metric("vllm:kv_cache_usage_perc", lambda v: v == 0)
    assert await simulator.metric("vllm:num_requests_running") == 0
    assert await simulator.metric("vllm:request_success_total") == 1  # as an abort


async def test_bodies_of_20_mb_are_served_and_echoed_intact(start: Start) -> None:
    simulator = await start(*FAST)
    async with InferenceClient(simulator.url) as client:
        served = await client.send(Ask(padding_bytes=20 * MB))
        echoed = await client.echo(bytes(range(256)) * (20 * MB // 256))
        refused = await client.send(Ask(padding_bytes=68 * MB))
    assert (served.error, echoed.error, refused.status) == ("", "", 413)
    assert int(served.headers["x-sim-request-bytes"]) > 20 * MB
    assert echoed.body_bytes == 20 * MB // 256 * 256


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", b"{", 400),
        ("/v1/completions", b'{"prompt": "a", "model": "other"}', 404),
        ("/v1/completions", json.dumps({"prompt": "x" * 200_000}).encode(), 400),
        ("/v1/nothing", b"{}", 404),
        ("/v1/models", b"{}", 405),
    ],
)
async def test_bad_requests_get_error_objects(start: Start, path: str, body: bytes, status: int) -> None:
    simulator = await start()
    async with aiohttp.ClientSession() as session, session.post(simulator.url + path, data=body) as response:
        fields = await response.json()
    assert (response.status, fields["error"]["code"]) == (status, status)
    assert fields["error"]["message"]


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"no HTTP at all\r\n\r\n", id="no-http"),
        pytest.param(b"GET /health HTTP/1.1\r\nbad header\r\n\r\n", id="bad-header"),
        pytest.param(
            b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", id="chunk"
        ),
        pytest.param(
            b"POST /v1/completions HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nab",
            id="gzip",
        ),
    ],
)
async def test_broken_http_gets_400_and_leaves_no_stack_in_the_log(start: Start, sent: bytes) -> None:
    simulator = await start("--drain-seconds", "0")
    reader, writer = await asyncio.open_connection(simulator.host, 8000)
    writer.write(sent)
    async with asyncio.timeout(30):
        assert b" 400 " in await reader.readline()
    writer.close()
    simulator.process.terminate()
    _, stderr = await simulator.process.communicate()
    assert "Traceback" not in stderr.decode()
    assert simulator.process.returncode == 0


async def test_ports_are_ranks_with_their_own_engines(start: Start) -> None:
    simulator = await start(*FAST, "--port", "8000,8001", env={"POD_NAME": "pod"})
    async with InferenceClient(simulator.at(8001)) as client:
        result = await client.send(Ask())
    assert (result.error, result.served_by) == ("", "pod:8001")
    counts = [await simulator.metric("vllm:request_success_total", port) for port in (8000, 8001)]
    assert counts == [0, 1]


async def test_models_and_adapters_are_listed_and_served(start: Start) -> None:
    simulator = await start(*FAST, "--model", "base", "--model", "alias", "--lora", "tuned")
    async with InferenceClient(simulator.url) as client:
        listed = await client.models()
        tuned = await client.send(Ask(model="tuned"))
    assert (listed.text, tuned.error) == ("base,alias,tuned", "")
    assert json.loads((await simulator.get("/version"))[1])["version"]


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--block-size", "0"), 2, "block_size is 0, must be at least 1"),
        (("--time-scale", "0"), 2, "--time-scale: must be above 0"),
        (("--drain-seconds", "nan"), 2, "--drain-seconds: 'nan' is not a finite number"),
        (("--port", "8000,8000"), 2, "--port: '8000,8000' is not a list of different ports"),
        (("--data-parallel-size", "2", "--lora", "a"), 2, "as in vLLM, engines behind one port"),
        (("--preset", "none"), 2, "argument --preset: invalid choice: 'none'"),
        (("--host", "192.0.2.1"), 1, "cannot serve on 192.0.2.1"),
        (("--kv-events-port", "5557", "--host", "localhost"), 2, "need an IP address as --host"),
        (("--kv-events-port", "65535", "--port", "8000,8001"), 2, "65535 is too high"),
        (("--kv-events-replay-port", "6557"), 2, "needs --kv-events-port"),
    ],
)
async def test_a_start_that_cannot_succeed_says_why(flags: tuple[str, ...], code: int, words: str) -> None:
    simulator = await spawn(*flags, host=new_host())
    async with asyncio.timeout(30):
        _, stderr = await simulator.process.communicate()
    assert simulator.process.returncode == code
    assert words in stderr.decode()
    assert "Traceback" not in stderr.decode()


@pytest.mark.parametrize("taken", [5557, 6557])
async def test_a_taken_port_of_the_events_is_named(taken: int) -> None:
    host = new_host()
    with socket.create_server((host, taken)):
        simulator = await spawn("--kv-events-port", "5557", "--kv-events-replay-port", "6557", host=host)
        async with asyncio.timeout(30):
            _, stderr = await simulator.process.communicate()
    assert simulator.process.returncode == 2
    assert "cannot publish KV-cache events: port 5557 and 6557" in stderr.decode()
    assert "Traceback" not in stderr.decode()


def test_events_without_pyzmq_name_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    monkeypatch.delitem(sys.modules, "model_server_sim.kv_publisher", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["--host", "127.0.0.1", "--kv-events-port", "5557"])
    assert ended.value.code == 2
    assert "needs zmq: pip install 'headroom-operator[simulator]'" in capsys.readouterr().err
