"""Subscriber processes that kill themselves with SIGKILL at a chosen step.

`python batch_victim.py` forks one for each line of standard input, so that the imports are paid once. A line
is a JSON object: `flags` of `headroom-batch run`, `log`, and if it is to die `step` and `count`: the process
dies the `count`th time that it comes to the step. Each child is reported by a line `PID`, its end by
`PID STATUS`.
"""

import asyncio
import contextlib
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from batch_subscriber import main
from batch_subscriber.commands import run as imported_before_the_fork  # noqa: F401
from batch_subscriber.gateway import Gateway
from batch_subscriber.queues.sqlite import SqliteQueue
from batch_subscriber.results import files
from batch_subscriber.results.files import FileResults

#: Received from the queue; sent to the gateway; half of the answer read; the result on the disk without its
#: name; the result written; before and after the acknowledgement.
STEPS = ("received", "sent", "half", "draft", "written", "before_ack", "after_ack")


def _arm(step: str, count: int) -> None:
    left = count

    def come() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    match step:
        case "received":
            _after(SqliteQueue, "receive", come)
        case "sent":
            _while_sent(come)
        case "half":
            _at_half(come)
        case "draft":
            # Called once the draft is synced, before it gets its name.
            link = os.link

            def link_after(*names: Any) -> None:
                come()
                link(*names)

            files.os.link = link_after  # type: ignore[attr-defined]
        case "written":
            _after(FileResults, "write", come)
        case "before_ack":
            _before(SqliteQueue, "ack", come)
        case "after_ack":
            _after(SqliteQueue, "ack", come)
        case _:
            raise ValueError(step)


def _after(kind: type, name: str, come: Callable[[], None]) -> None:
    plain = getattr(kind, name)

    async def call(*arguments: Any) -> Any:
        got = await plain(*arguments)
        if got:
            come()
        return got

    setattr(kind, name, call)


def _before(kind: type, name: str, come: Callable[[], None]) -> None:
    plain = getattr(kind, name)

    async def call(*arguments: Any) -> Any:
        come()
        return await plain(*arguments)

    setattr(kind, name, call)


def _while_sent(come: Callable[[], None]) -> None:
    plain = Gateway.post

    async def post(self: Gateway, *arguments: Any) -> Any:
        asyncio.get_running_loop().call_later(0.005, come)
        return await plain(self, *arguments)

    setattr(Gateway, "post", post)  # noqa: B010


def _at_half(come: Callable[[], None]) -> None:
    async def whole(_: Gateway, response: aiohttp.ClientResponse) -> bytes:
        body = b""
        async for part in response.content.iter_any():
            body += part
            if len(body) < int(response.headers["content-length"]):
                come()
        return body

    setattr(Gateway, "_whole", whole)  # noqa: B010


def _child(order: dict[str, Any]) -> int:
    number = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(number, stream)
    if order.get("step"):
        _arm(order["step"], order["count"])
    return main.run(["run", *order["flags"]])


def serve() -> None:
    children: set[int] = set()
    pending = b""
    is_open = True
    while is_open or children:
        ready = select.select([0], [], [], 0.005)[0] if is_open else []
        if ready:
            data = os.read(0, 65536)
            is_open = bool(data)
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                pid = os.fork()
                if pid == 0:
                    os.close(0)
                    status = 1
                    try:
                        status = _child(json.loads(line))
                    finally:
                        sys.stderr.flush()
                        os._exit(status)
                children.add(pid)
                print(pid, flush=True)
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                children.discard(pid)
                print(pid, os.waitstatus_to_exitcode(status), flush=True)


class Victims:
    """The parent of such processes, from the test's side."""

    def __init__(self) -> None:
        self._parent: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._born: list[asyncio.Future[int]] = []
        self._ends: dict[int, asyncio.Future[int]] = {}

    async def open(self) -> None:
        self._parent = await asyncio.create_subprocess_exec(
            sys.executable, str(Path(__file__)), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self._parent is not None
        assert self._parent.stdout is not None
        async for line in self._parent.stdout:
            pid, *status = (int(word) for word in line.split())
            if status:
                self._ends[pid].set_result(status[0])
            else:
                self._ends[pid] = asyncio.get_running_loop().create_future()
                self._born.pop(0).set_result(pid)

    async def start(self, flags: list[str], log: Path, step: str = "", count: int = 1) -> "Victim":
        assert self._parent is not None
        assert self._parent.stdin is not None
        born: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._born.append(born)
        order = {"flags": flags, "log": str(log), "step": step, "count": count}
        self._parent.stdin.write(json.dumps(order).encode() + b"\n")
        pid = await born
        return Victim(pid, self._ends[pid])

    async def close(self) -> None:
        """End every process that is left, and the parent."""
        for pid, end in self._ends.items():
            if not end.done():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self._parent is not None:
            assert self._parent.stdin is not None
            self._parent.stdin.close()
            await self._parent.wait()
        if self._reading is not None:
            await self._reading


class Victim:
    """One of them."""

    def __init__(self, pid: int, end: asyncio.Future[int]) -> None:
        self.pid = pid
        self.end = end
        """Its exit status; -9 after SIGKILL."""

    async def stop(self, number: int) -> int:
        if not self.end.done():
            # It may have ended, and its parent be about to say so.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
        return await asyncio.shield(self.end)


if __name__ == "__main__":
    serve()
