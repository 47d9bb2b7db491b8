"""CPU cost of a gRPC server with no-op handlers: grpc.aio and lean_grpc, interleaved in one run.

    python bench/transport.py                 the table, one JSON line a figure
    python bench/transport.py --churn 1000000 parked streams after that many streams (default 50,000)

Every server is a process of its own; its CPU is the run time that the kernel counted for its threads while a
load of fixed size went through. The load generator (lean_grpc's client, raw bytes) is not counted. Both
servers take and give bytes, so that neither pays for protobuf.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import uvloop
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from lean_grpc import Channel, ClientCall, Limits, Server, ServerCall, Status, StatusCode, client_context
from lean_grpc.aio.tls import self_signed_server

EXCHANGE = "/bench.ExtProc/Exchange"
CHUNKS = "/bench.ExtProc/Chunks"
ROUNDS = 7
STREAMS = 64
EXCHANGES = 1_500
SINGLE_EXCHANGES = 400
CHUNKS_A_STREAM = 200
CHUNK_STREAMS = 16
PARKED = 2_000
MESSAGES = 4


def header_map(**fields: str) -> base_pb2.HeaderMap:
    return base_pb2.HeaderMap(
        headers=[base_pb2.HeaderValue(key=key, raw_value=value.encode()) for key, value in fields.items()]
    )


def requests() -> list[bytes]:
    """Four messages of one exchange, 1 KB together."""
    headers = ext_proc.HttpHeaders(headers=header_map(method="POST", path="/v1/completions", host="pool"))
    answer = ext_proc.HttpHeaders(headers=header_map(status="200", type="application/json"))
    return [
        ext_proc.ProcessingRequest(request_headers=headers).SerializeToString(),
        ext_proc.ProcessingRequest(
            request_body=ext_proc.HttpBody(body=b"p" * 560, end_of_stream=True)
        ).SerializeToString(),
        ext_proc.ProcessingRequest(response_headers=answer).SerializeToString(),
        ext_proc.ProcessingRequest(
            response_body=ext_proc.HttpBody(body=b"r" * 250, end_of_stream=True)
        ).SerializeToString(),
    ]


def streamed(body: bytes) -> ext_proc.BodyResponse:
    mutation = ext_proc.BodyMutation(
        streamed_response=ext_proc.StreamedBodyResponse(body=body, end_of_stream=True)
    )
    return ext_proc.BodyResponse(response=ext_proc.CommonResponse(body_mutation=mutation))


def answers() -> list[bytes]:
    """Four answers of one exchange, 1 KB together."""
    pick = base_pb2.HeaderValueOption(
        header=base_pb2.HeaderValue(key="x-gateway-destination-endpoint", raw_value=b"10.0.0.1:8000")
    )
    headers = ext_proc.HeadersResponse(
        response=ext_proc.CommonResponse(
            header_mutation=ext_proc.HeaderMutation(set_headers=[pick]), clear_route_cache=True
        )
    )
    return [
        ext_proc.ProcessingResponse(request_headers=headers).SerializeToString(),
        ext_proc.ProcessingResponse(request_body=streamed(b"p" * 560)).SerializeToString(),
        ext_proc.ProcessingResponse(response_headers=ext_proc.HeadersResponse()).SerializeToString(),
        ext_proc.ProcessingResponse(response_body=streamed(b"r" * 250)).SerializeToString(),
    ]


CHUNK = b'data: {"choices":[{"text":"' + b"w" * 120 + b'"}],"usage":{"total_tokens":1234}}\n\n'
CHUNK += b" " * (250 - len(CHUNK))


def chunk_request() -> bytes:
    return bytes(ext_proc.ProcessingRequest(response_body=ext_proc.HttpBody(body=CHUNK)).SerializeToString())


CHUNK_HEAD = ext_proc.ProcessingResponse(response_body=streamed(CHUNK)).SerializeToString()
CHUNK_HEAD = CHUNK_HEAD[: CHUNK_HEAD.index(CHUNK)]


class Reading:
    """The work per chunk in both servers: note the time, read the usage, echo the chunk by a splice."""

    __slots__ = ("first", "last", "usage")

    def __init__(self) -> None:
        self.first = self.last = 0.0
        self.usage = 0

    def echo(self, payload: bytes) -> bytes:
        self.last = time.monotonic()
        self.first = self.first or self.last
        body = payload[payload.index(b"data:") :]
        at = body.find(b'"total_tokens":')
        if at >= 0:
            self.usage = int(body[at + 15 : body.index(b"}", at)])
        return bytes(CHUNK_HEAD) + body


# -- the servers ----------------------------------------------------------------------------------------


class ExchangeHandler:
    """Four messages in, four out."""

    __slots__ = ("_answers", "_call", "_seen")

    def __init__(self, call: ServerCall, replies: list[bytes]) -> None:
        self._call = call
        self._answers = replies
        self._seen = 0

    def opened(self, metadata: object) -> None:
        pass

    def received(self, payload: bytes) -> None:
        self._call.send(self._answers[self._seen])
        self._seen += 1

    def ended(self) -> None:
        self._call.finish()

    def aborted(self, code: StatusCode) -> None:
        pass

    def writable(self) -> None:
        pass


class ChunkHandler:
    """Chunks in, chunks out."""

    __slots__ = ("_call", "_reading")

    def __init__(self, call: ServerCall) -> None:
        self._call = call
        self._reading = Reading()

    def opened(self, metadata: object) -> None:
        pass

    def received(self, payload: bytes) -> None:
        self._call.send(self._reading.echo(payload))

    def ended(self) -> None:
        self._call.finish()

    def aborted(self, code: StatusCode) -> None:
        pass

    def writable(self) -> None:
        pass


async def serve_lean(tls: bool) -> int:
    server = Server(limits=Limits(max_concurrent_streams=10_000, first_message_timeout=0))
    replies = answers()
    server.add(EXCHANGE, lambda call: ExchangeHandler(call, replies))
    server.add(CHUNKS, ChunkHandler)
    return await server.listen(tls=self_signed_server() if tls else None)


async def serve_aio(tls: bool) -> int:
    replies = answers()

    async def exchange(stream: object, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        seen = 0
        while (await context.read()) is not grpc.aio.EOF:
            await context.write(replies[seen])
            seen += 1

    async def chunks(stream: object, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        reading = Reading()
        while (payload := await context.read()) is not grpc.aio.EOF:
            await context.write(reading.echo(payload))

    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Exchange": grpc.stream_stream_rpc_method_handler(exchange),
        "Chunks": grpc.stream_stream_rpc_method_handler(chunks),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.ExtProc", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    serve_aio.keep = server  # type: ignore[attr-defined]
    return port


async def serve(kind: str) -> None:
    port = await (serve_aio(False) if kind == "aio" else serve_lean(kind == "tls"))
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)


class Contender:
    """A server process and a channel to it."""

    def __init__(self, kind: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        port = int(self.process.stdout.readline())
        tls = client_context(verify=False) if kind == "tls" else None
        self.channel = Channel(f"localhost:{port}" if tls else f"127.0.0.1:{port}", tls=tls)

    def cpu(self) -> float:
        """Seconds that the kernel has run the process's threads."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9

    def resident(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    async def cost(self, load: Callable[[Channel], Awaitable[int]]) -> float:
        """Microseconds of CPU that one unit of the load costs."""
        before = self.cpu()
        units = await load(self.channel)
        return (self.cpu() - before) / units * 1e6

    async def close(self) -> None:
        await self.channel.close()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


# -- the load -------------------------------------------------------------------------------------------


class Conversation:
    """Sends `payloads` in turn, each after the answer to the one before; then calls `finished`."""

    __slots__ = ("_at", "_payloads", "call", "finished")

    def __init__(self, payloads: list[bytes], finished: Callable[[], None]) -> None:
        self._payloads = payloads
        self._at = 1
        self.finished = finished
        self.call: ClientCall | None = None

    def begin(self, channel: Channel, path: str) -> None:
        self.call = channel.call(path, self)
        self.call.send(self._payloads[0])

    def opened(self, metadata: object) -> None:
        pass

    def received(self, payload: bytes) -> None:
        assert self.call is not None
        if self._at < len(self._payloads):
            self.call.send(self._payloads[self._at])
            self._at += 1
        else:
            self.call.end()

    def ended(self, status: Status) -> None:
        if status.code is not StatusCode.OK:
            raise status.error()
        self.finished()

    def writable(self) -> None:
        pass


async def converse(channel: Channel, path: str, payloads: list[bytes], total: int, concurrency: int) -> None:
    """Hold `total` conversations, `concurrency` at a time."""
    done = asyncio.get_running_loop().create_future()
    begun = ended = 0

    def following() -> None:
        nonlocal begun, ended
        ended += 1
        if ended == total:
            done.set_result(None)
        elif begun < total:
            begun += 1
            Conversation(payloads, following).begin(channel, path)

    for _ in range(min(concurrency, total)):
        begun += 1
        Conversation(payloads, following).begin(channel, path)
    await done


MESSAGES_OF_EXCHANGE = requests()
CHUNKS_OF_STREAM = [chunk_request()] * CHUNKS_A_STREAM


async def many(channel: Channel) -> int:
    await converse(channel, EXCHANGE, MESSAGES_OF_EXCHANGE, EXCHANGES, STREAMS)
    return EXCHANGES


async def single(channel: Channel) -> int:
    await converse(channel, EXCHANGE, MESSAGES_OF_EXCHANGE, SINGLE_EXCHANGES, 1)
    return SINGLE_EXCHANGES


async def chunked(channel: Channel) -> int:
    await converse(channel, CHUNKS, CHUNKS_OF_STREAM, CHUNK_STREAMS, CHUNK_STREAMS)
    return CHUNK_STREAMS * CHUNKS_A_STREAM


async def parked(contender: Contender, churn: int) -> tuple[float, float]:
    """Bytes that an idle open stream holds, and that the server gains while `churn` streams come and go."""

    async def hold() -> float:
        before = contender.resident()
        held = [contender.channel.stream(EXCHANGE) for _ in range(PARKED)]
        for stream in held:
            await stream.send(b"x")
        for stream in held:
            await stream.read()
        size = (contender.resident() - before) / PARKED
        for stream in held:
            stream.cancel()
        return size

    await converse(contender.channel, EXCHANGE, [b"x"], 10, 1)
    size = await hold()
    floor = contender.resident()
    await converse(contender.channel, EXCHANGE, [b"x"], churn, STREAMS)
    return size, contender.resident() - floor


def report(figure: str, values: list[float], unit: str, goal: float, **more: float) -> None:
    value = statistics.median(values)
    line: dict[str, object] = {
        "figure": figure,
        "value": round(value, 4),
        "unit": unit,
        "goal": round(goal, 4),
        "ok": value <= goal,
        "low": round(min(values), 4),
        "high": round(max(values), 4),
    }
    line.update({key: round(number, 1) for key, number in more.items()})
    print(json.dumps(line), flush=True)


def ratio(figure: str, ours: list[float], theirs: list[float], goal: float) -> None:
    """Report the median of the ratios of each round, with the medians that it comes from in microseconds."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    medians = {"ours_us": statistics.median(ours), "reference_us": statistics.median(theirs)}
    report(figure, ratios, "ratio", goal, **medians)


async def measure(rounds: int, churn: int) -> None:
    contenders = {kind: Contender(kind) for kind in ("aio", "lean", "tls")}
    loads = {"many": many, "single": single, "chunk": chunked}
    costs: dict[tuple[str, str], list[float]] = {(k, w): [] for k in contenders for w in loads}
    for number in range(rounds + 1):
        for what, load in loads.items():
            for kind, contender in contenders.items():
                if kind == "tls" and what == "chunk":
                    continue
                cost = await contender.cost(load)
                if number:  # the first round warms up
                    costs[kind, what].append(cost)
    ratio("exchange_cpu_ratio", costs["lean", "many"], costs["aio", "many"], 1 / 6)
    ratio("exchange_cpu_ratio_single", costs["lean", "single"], costs["aio", "single"], 1 / 4)
    ratio("chunk_cpu_ratio", costs["lean", "chunk"], costs["aio", "chunk"], 1 / 6)
    # A new process: free memory left by an earlier load would hide the memory that streams take.
    contenders["fresh"] = Contender("lean")
    size, growth = await parked(contenders["fresh"], churn)
    report("parked_stream_bytes", [size], "bytes", 20_480, growth=growth, churn=churn)
    ratio("tls_cpu_ratio", costs["tls", "many"], costs["lean", "many"], 1.25)
    ratio("tls_cpu_ratio_single", costs["tls", "single"], costs["lean", "single"], 1.6)
    for contender in contenders.values():
        await contender.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", choices=("aio", "lean", "tls"), help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--churn", type=int, default=50_000, help="streams between two readings of the memory"
    )
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve(options.serve))
    else:
        uvloop.run(measure(options.rounds, options.churn))


if __name__ == "__main__":
    main()
