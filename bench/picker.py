"""CPU cost of a request in the whole picker process behind the real Envoy, TLS off or on.

    python bench/picker.py                      this tree
    python bench/picker.py --against DIR        and interleaved with it another checkout: CPU ratios as well

Requests are plain ones, chats of 550 KB, and streams. The picker runs as in a pod but finds its endpoints in
a file; client and model servers are not counted. Prints one JSON line a figure: microseconds of process CPU a
request, median of the rounds and spread, and the median of the ratios to what the picker's own Envoy takes
for the same requests. Against another checkout, rounds are added until the 95 % interval of every ratio is
narrower than `--width`.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, cast

import paired
import uvloop
from typing_extensions import override

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import envoy_proxy

ROUNDS = 7
#: Requests of a round, by figure.
TIMES = {"request": 1500, "long_prompt": 120, "stream": 300}
LONG_BYTES = 550_000
EVENTS = 50
EVENT_EVERY_S = 0.004
CONNECTIONS = 64
HEADERS = (
    b"POST /v1/completions HTTP/1.1\r\nhost: gateway.example.com\r\ncontent-type: application/json\r\n"
    b"user-agent: python-httpx/0.28\r\naccept: */*\r\naccept-encoding: gzip, deflate\r\n"
    b"authorization: Bearer sk-0123456789abcdef\r\ncontent-length: %d\r\n\r\n%b"
)
CHAT_HEADERS = HEADERS.replace(b"/v1/completions", b"/v1/chat/completions")
USAGE = {"prompt_tokens": 250, "completion_tokens": 100, "total_tokens": 350}
ANSWER = json.dumps({"choices": [{"text": "y" * 900}], "usage": USAGE}).encode()
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(ANSWER),
    ANSWER,
)
EVENT_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def event(number: int) -> bytes:
    choice = {"index": 0, "delta": {"content": f" token{number}"}, "logprobs": None, "finish_reason": None}
    text = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    usage = USAGE if number == EVENTS - 1 else None
    data = f"data: {json.dumps({**text, 'usage': usage})}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


EVENT_BYTES = [event(number) for number in range(EVENTS)]


TEXT = 'It is a truth universally acknowledged, that a "single" man in want of a wife must be\n'
LONG = json.dumps(TEXT * (LONG_BYTES // len(TEXT)))[1:]


def request(number: int, figure: str) -> bytes:
    """Return a request. No two prompts begin alike, so that the prefix index takes each of them in."""
    if figure == "long_prompt":
        body = f'{{"model":"m","messages":[{{"role":"user","content":"{number} {LONG}}}]}}'.encode()
        return CHAT_HEADERS % (len(body), body)
    stream = figure == "stream"
    body = json.dumps({"model": "m", "stream": stream, "prompt": f"{number} " + "x" * 940}).encode()
    return HEADERS % (len(body), body)


class ModelServer(asyncio.Protocol):
    """Answers once a request's last byte has arrived, with a stream if the request asks for one."""

    def __init__(self) -> None:
        self._got = b""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def data_received(self, data: bytes) -> None:
        self._got += data
        if self._got.startswith(b"GET") and self._got.endswith(b"\r\n\r\n"):
            self._got = b""
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 0\r\n\r\n")
        elif self._got.endswith(LAST):
            stream, self._got = b'"stream": true' in self._got, b""
            if stream:
                self._transport.write(EVENT_HEAD)
                self._stream(0)
            else:
                self._transport.write(PLAIN)

    def _stream(self, number: int) -> None:
        self._transport.write(EVENT_BYTES[number])
        if number + 1 < EVENTS:
            asyncio.get_running_loop().call_later(EVENT_EVERY_S, self._stream, number + 1)
        else:
            self._transport.write(LAST)


class Client(asyncio.Protocol):
    """One connection that sends the requests of `work`, each after the answer to the one before."""

    def __init__(self, work: Iterator[bytes], over: "asyncio.Future[None]") -> None:
        self._work = work
        self._over = over
        self._tail = b""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._next()

    @override
    def data_received(self, data: bytes) -> None:
        if not self._tail and not data.startswith(b"HTTP/1.1 200"):
            self._over.set_exception(RuntimeError(data.decode("latin-1")))
        self._tail = (self._tail + data)[-5:]
        if self._tail == LAST:
            self._tail = b""
            self._next()

    def _next(self) -> None:
        for each in self._work:
            self._transport.write(each)
            return
        self._transport.close()
        if not self._over.done():
            self._over.set_result(None)


async def load(port: int, numbers: Iterable[int], figure: str) -> None:
    loop = asyncio.get_running_loop()
    work = (request(number, figure) for number in numbers)
    ends = [loop.create_future() for _ in range(8 if figure == "long_prompt" else CONNECTIONS)]
    for end in ends:
        await loop.create_connection(partial(Client, work, end), "127.0.0.1", port)
    await asyncio.gather(*ends)


def children() -> set[int]:
    """Return the processes that this one has started and that run."""
    tasks = Path("/proc/self/task").iterdir()
    return {int(each) for task in tasks for each in (task / "children").read_text().split()}


def cpu_s(process: int) -> float:
    """Return the CPU time of all threads that a process has."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


class Contender:
    """One picker with its Envoy."""

    def __init__(self, source: Path | None, tls: bool, flags: Sequence[str] = ()) -> None:
        """`flags` are further flags of the picker."""
        self.source = source
        self.tls = tls
        self._flags = flags

    async def start(self, stack: AsyncExitStack, folder: Path, endpoints: Path) -> None:
        ports = [envoy_proxy.free_port() for _ in range(3)]
        names = ("--grpc-port", "--grpc-health-port", "--metrics-port")
        flags = [text for name, port in zip(names, ports, strict=True) for text in (name, str(port))]
        path = {"PYTHONPATH": paired.package_path(self.source)} if self.source else {}
        environment = {**os.environ, **path}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "endpoint_picker.main", "--pool-name", "p"),
            *("--bind-address", "127.0.0.1", "--endpoints-file", str(endpoints)),
            *("--refresh-metrics-interval", "1s", f"--secure-serving={str(self.tls).lower()}", *flags),
            *self._flags,
            env=environment,
            stderr=(folder / f"{ports[0]}.log").open("wb"),
        )
        stack.callback(process.kill)
        self.process = process.pid
        await connected(ports[0])
        log = folder / f"envoy-{ports[0]}.log"
        proxy = envoy_proxy.running(f"127.0.0.1:{ports[0]}", log, tls=self.tls)
        before = children()
        url = await stack.enter_async_context(proxy)
        (self.envoy,) = children() - before
        self.port = int(url.rpartition(":")[2])
        self._numbers = count()
        await load(self.port, islice(self._numbers, 300), "request")

    async def cost_us(self, figure: str) -> tuple[float, float]:
        """Return what a request costs the picker and its Envoy."""
        times = TIMES[figure]
        begun = cpu_s(self.process), cpu_s(self.envoy)
        await load(self.port, islice(self._numbers, times), figure)
        ended = cpu_s(self.process), cpu_s(self.envoy)
        return (ended[0] - begun[0]) / times * 1e6, (ended[1] - begun[1]) / times * 1e6


async def connected(port: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


async def run(
    sources: dict[str, Path | None], rounds: int, most_rounds: int, width: float, pool: int
) -> None:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        listener = await asyncio.get_running_loop().create_server(ModelServer, "0.0.0.0", 0)
        port = listener.sockets[0].getsockname()[1]
        endpoints = folder / "endpoints.json"
        entries = [
            {"name": f"s{at}", "namespace": "default", "address": f"127.0.0.{at}", "port": port}
            for at in range(1, pool + 1)
        ]
        endpoints.write_text(json.dumps({"endpoints": entries}))
        contenders = {
            (name, "tls" if tls else "plaintext"): Contender(source, tls)
            for name, source in sources.items()
            for tls in (False, True)
        }
        for each in contenders.values():
            await each.start(stack, folder, endpoints)
        costs: dict[tuple[str, ...], list[float]] = {}
        of_envoy: dict[tuple[str, ...], list[float]] = {}
        ratios: dict[tuple[str, ...], tuple[float, float, float]] = {}
        for done in range(1, most_rounds + 1):
            # Each round begins with another contender, so that none has the warmer machine.
            keys = list(contenders)
            for key in keys[done % len(keys) :] + keys[: done % len(keys)]:
                for figure in TIMES:
                    cost, envoy = await contenders[key].cost_us(figure)
                    costs.setdefault((*key, figure), []).append(cost)
                    of_envoy.setdefault((*key, figure), []).append(cost / envoy)
            if done >= rounds:
                ratios = ratios_of(costs, list(sources))
                if all(high - low < width for _, low, high in ratios.values()):
                    break
    for (security, figure), (ratio, low, high) in ratios.items():
        line: dict[str, Any] = {
            "figure": f"picker_{figure}_cpu_ratio",
            "security": security,
            "value": round(ratio, 4),
            "unit": "ratio",
            "interval": [round(low, 4), round(high, 4)],
            "endpoints": pool,
            "goal": paired.GOAL,
            "ok": high <= paired.GOAL,
        }
        print(json.dumps(line))
    for (name, security, figure), values in costs.items():
        line = {
            "figure": f"picker_{figure}_cpu",
            "of": name,
            "security": security,
            "value": round(statistics.median(values), 1),
            "unit": "us",
            "spread": [round(min(values), 1), round(max(values), 1)],
            "of_envoy": round(statistics.median(of_envoy[name, security, figure]), 3),
        }
        print(json.dumps(line | ({"events": EVENTS} if figure == "stream" else {})))


def ratios_of(
    costs: dict[tuple[str, ...], list[float]], names: list[str]
) -> dict[tuple[str, ...], tuple[float, float, float]]:
    """Return the ratio of the first source to the other, with its interval, by security and figure."""
    if len(names) < 2:
        return {}
    this, other = names
    return {
        key[1:]: paired.interval(list(zip(values, costs[other, *key[1:]], strict=True)))
        for key, values in costs.items()
        if key[0] == this
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds at least (default %(default)s)")
    parser.add_argument("--max-rounds", type=int, help="rounds at most (default: as --rounds; against: 40)")
    parser.add_argument("--width", type=float, default=0.04, help="widest interval (default 0.04: 4 points)")
    parser.add_argument("--endpoints", type=int, default=1, help="endpoints of the pool (default 1)")
    given = parser.parse_args()
    sources: dict[str, Path | None] = {"this tree": None}
    if given.against:
        sources[str(given.against)] = given.against
    most = given.max_rounds or (max(40, given.rounds) if given.against else given.rounds)
    uvloop.run(run(sources, given.rounds, most, given.width, given.endpoints))


if __name__ == "__main__":
    main()
