"""What a subscriber costs: CPU with 500 requests in flight and 100 answers of 4 KB a second, and its memory.

    python bench/batch.py                 one JSON line a figure
    python bench/batch.py --seconds 60    a longer measurement

`headroom-batch run` is a process of its own, whose CPU and resident memory are read from /proc; the gateway,
which answers each request after five seconds, is another. Jobs come from the embedded queue (SQLite on the
disk of --folder) and results go into files there, so that every step is durable. The second part gives it 96
jobs of 1 MiB and `max_held_bytes` of 32 MiB: memory over that of the idle process goes by the setting.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from aiohttp import web

from batch_subscriber.jobs import Job
from batch_subscriber.queues.sqlite import SqliteQueue

IN_FLIGHT: Final = 500
HOLD_S: Final = 5.0
ANSWER: Final = (
    b'{"id":"cmpl-1","choices":[{"index":0,"text":"' + b"x" * 4000 + b'","finish_reason":"stop"}]}'
)
GOAL_CORES: Final = 0.5
HELD_BYTES: Final = 32 * 2**20
#: Copies of a body in memory at once: the row, the text of its JSON, the body, the socket's buffer.
COPIES: Final = 4
_TICK: Final = os.sysconf("SC_CLK_TCK")


def gateway(ready: Connection) -> None:
    """Answer POSTs after HOLD_S; send the count of answers whenever asked."""
    answered = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal answered
        await request.read()
        await asyncio.sleep(HOLD_S)
        answered += 1
        return web.Response(body=ANSWER, content_type="application/json")

    async def count(_: web.Request) -> web.Response:
        return web.Response(text=str(answered))

    async def serve() -> None:
        application = web.Application(client_max_size=2**24)
        application.router.add_post("/{path:.*}", answer)
        application.router.add_get("/count", count)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        ready.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(serve())


class Subscriber:
    """A `headroom-batch run` and what the kernel counts of it."""

    def __init__(self, folder: Path, port: int, *flags: str) -> None:
        code = "from batch_subscriber.entry import main; main()"
        self._process = subprocess.Popen(
            [
                sys.executable, "-c", code, "run", f"--queue=sqlite:{folder}/q.db",
                f"--results=file:{folder}/results", f"--gateway=http://127.0.0.1:{port}", "--http=",
                "--log-level=ERROR", *flags,
            ]
        )  # fmt: skip
        self._proc = Path(f"/proc/{self._process.pid}")

    def cpu_s(self) -> float:
        words = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / _TICK

    def memory_mb(self, name: str = "VmRSS") -> float:
        for line in (self._proc / "status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) / 1024
        raise ValueError(name)

    def end(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


async def fill(folder: Path, count: int, body: bytes) -> None:
    queue = SqliteQueue(folder / "q.db")
    now = time.time()
    for first in range(0, count, 200):
        await queue.put(
            [
                Job(id=f"{number}", generation="g", path="/v1/completions", body=body, submitted_at=now)
                for number in range(first, min(first + 200, count))
            ]
        )
    await queue.close()


async def answered(port: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /count HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    text = await reader.read()
    writer.close()
    return int(text.rpartition(b"\r\n")[2])


def figure(name: str, value: float, unit: str, goal: str, *, ok: bool) -> None:
    print(
        json.dumps({"figure": name, "value": round(value, 3), "unit": unit, "goal": goal, "ok": ok}),
        flush=True,
    )


def throughput(folder: Path, port: int, seconds: float) -> None:
    rate = IN_FLIGHT / HOLD_S
    asyncio.run(
        fill(folder, int(rate * (seconds + 6 * HOLD_S)), b'{"model":"m","prompt":"' + b"y" * 1000 + b'"}')
    )
    subscriber = Subscriber(folder, port, f"--first-in-flight={IN_FLIGHT}", f"--max-in-flight={IN_FLIGHT}",
                            "--max-held=700", "--stretch=100")  # fmt: skip
    try:
        time.sleep(3 * HOLD_S)
        shares, rates = [], []
        for _ in range(5):
            cpu, count, at = subscriber.cpu_s(), asyncio.run(answered(port)), time.monotonic()
            time.sleep(seconds / 5)
            length = time.monotonic() - at
            shares.append((subscriber.cpu_s() - cpu) / length)
            rates.append((asyncio.run(answered(port)) - count) / length)
        memory = subscriber.memory_mb("VmHWM")
    finally:
        subscriber.end()
    answers, cores = statistics.median(rates), statistics.median(shares)
    figure("answers", answers, "1/s", ">= 95", ok=answers >= 95)
    figure("cpu", cores, "cores", f"<= {GOAL_CORES}", ok=cores <= GOAL_CORES)
    figure("cpu_per_answer", cores / answers * 1000, "ms", "", ok=True)
    figure("memory", memory, "MB", "", ok=True)


def memory(folder: Path, port: int) -> None:
    idle = Subscriber(folder, port)
    time.sleep(3)
    before = idle.memory_mb("VmHWM")
    idle.end()
    asyncio.run(fill(folder, 96, b'{"prompt":"' + b"z" * 2**20 + b'"}'))
    subscriber = Subscriber(folder, port, f"--max-held-bytes={HELD_BYTES}", f"--first-in-flight={IN_FLIGHT}",
                            f"--max-in-flight={IN_FLIGHT}")  # fmt: skip
    try:
        time.sleep(4 * HOLD_S)
        over = subscriber.memory_mb("VmHWM") - before
    finally:
        subscriber.end()
    bound = COPIES * HELD_BYTES / 2**20
    figure("memory_over_idle_with_32_MiB_held", over, "MB", f"<= {bound:.0f}", ok=over <= bound)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--folder", type=Path, help="where queue and results are (a temporary folder)")
    given = parser.parse_args()
    mine, theirs = multiprocessing.Pipe()
    serving = multiprocessing.get_context("spawn").Process(target=gateway, args=(theirs,), daemon=True)
    serving.start()
    port = int(mine.recv())
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for part in ("throughput", "memory"):
            (Path(folder) / part).mkdir()
        throughput(Path(folder) / "throughput", port, given.seconds)
        memory(Path(folder) / "memory", port)
    serving.terminate()


if __name__ == "__main__":
    main()
