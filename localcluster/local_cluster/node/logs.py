"""Container logs: bounded in size, and served over HTTPS for `kubectl logs`, as by a kubelet."""

import asyncio
import contextlib
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from aiohttp import web

from local_cluster.node.api import Access

_CHUNK: Final = 1 << 16
_FOLLOW_EVERY_S: Final = 0.2
_LONGEST_TAIL: Final = 1_000_000
#: Limit of a log in bytes. The file `.1` beside it keeps as many of the bytes before.
LIMIT_BYTES: Final = 16 << 20
_BOUND_EVERY_S: Final = 1.0
_UNSUPPORTED: Final = ("previous", "sinceSeconds", "sinceTime", "timestamps")


def bound_log(log: Path) -> None:
    """Copy the end of a log over LIMIT_BYTES to `.1` and truncate the log; its writer appends from byte 0.

    All but the last LIMIT_BYTES are lost: a quick writer can be far over the limit when this is called.
    """
    with contextlib.suppress(OSError), log.open("rb") as written:
        size = written.seek(0, os.SEEK_END)
        if size > LIMIT_BYTES:
            written.seek(size - LIMIT_BYTES)
            log.with_name(f"{log.name}.1").write_bytes(written.read(LIMIT_BYTES))
            os.truncate(log, 0)


def _bound_all(directory: Path) -> None:
    for log in directory.glob("*/*.log"):
        bound_log(log)


async def keep_bounded(directory: Path) -> None:
    """Bound the logs of all pods below `directory`, every second, until cancelled."""
    while True:
        await asyncio.to_thread(_bound_all, directory)
        await asyncio.sleep(_BOUND_EVERY_S)


@dataclass(frozen=True, slots=True)
class LogQuery:
    """The options of one `kubectl logs`."""

    follow: bool
    tail_lines: int | None
    limit_bytes: int | None


def parse_query(query: dict[str, str]) -> LogQuery:
    """Read the query of a request.

    Raises:
        ValueError: a value is wrong, or an option needs what this node does not keep; the text names it.
    """
    for name in _UNSUPPORTED:
        if query.get(name, "false") != "false":
            message = f"the local node's logs have no {name}: a container has one file over all its restarts"
            raise ValueError(message)
    numbers: dict[str, int | None] = {"tailLines": None, "limitBytes": None}
    for name in numbers:
        if name in query:
            if not query[name].isdecimal():
                message = f"{name} has to be a number"
                raise ValueError(message)
            numbers[name] = int(query[name])
    return LogQuery(query.get("follow") == "true", numbers["tailLines"], numbers["limitBytes"])


def seek_tail(file: BinaryIO, lines: int) -> None:
    """Move to where the last `lines` lines of a file begin."""
    end = file.seek(0, os.SEEK_END)
    position, wanted, found = end, min(lines, _LONGEST_TAIL) + 1, 0
    if lines == 0:
        return
    while position > 0:
        size = min(_CHUNK, position)
        position -= size
        file.seek(position)
        block = file.read(size)
        if position + size == end and not block.endswith(b"\n"):
            wanted -= 1  # the last line has no newline yet
        breaks = block.count(b"\n")
        if found + breaks >= wanted:
            for _ in range(wanted - found):
                size = block.rfind(b"\n", 0, size)
            file.seek(position + size + 1)
            return
        found += breaks
    file.seek(0)


class LogServer:
    """Serves `/containerLogs/NAMESPACE/POD/CONTAINER`; a follower is served while `running` is true."""

    def __init__(
        self,
        access: Access,
        log_of: Callable[[str, str, str], Path],
        running: Callable[[str, str, str], bool],
    ) -> None:
        self._access = access
        self._log_of = log_of
        self._running = running
        self._runner: web.AppRunner | None = None

    async def start(self, host: str) -> int:
        """Listen, and return the port. A client needs a certificate of the cluster's authority."""
        context = ssl.create_default_context(
            ssl.Purpose.CLIENT_AUTH, cafile=self._access.certificate_authority
        )
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self._access.certificate, self._access.key)
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, 0, ssl_context=context)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Stop serving."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        where = (
            request.match_info["namespace"],
            request.match_info["pod"],
            request.match_info["container"],
        )
        if any(part in {".", ".."} or "/" in part for part in where):
            return web.Response(status=400, text="no such name")
        try:
            wanted = parse_query(dict(request.query))
            file = self._log_of(*where).open("rb")
        except ValueError as error:
            return web.Response(status=400, text=str(error))
        except OSError:
            return web.Response(status=404, text=f"container {where[2]} of pod {where[1]} has no log yet")
        with file:
            response = web.StreamResponse(headers={"Content-Type": "text/plain"})
            await response.prepare(request)
            if wanted.tail_lines is not None:
                seek_tail(file, wanted.tail_lines)
            with contextlib.suppress(ConnectionError):
                await self._copy(file, response, wanted, where)
        return response

    async def _copy(
        self, file: BinaryIO, response: web.StreamResponse, wanted: LogQuery, where: tuple[str, str, str]
    ) -> None:
        left = wanted.limit_bytes
        while left is None or left > 0:
            still_written = wanted.follow and self._running(*where)
            if chunk := file.read(_CHUNK if left is None else min(left, _CHUNK)):
                left = None if left is None else left - len(chunk)
                await response.write(chunk)
            elif still_written:
                await asyncio.sleep(_FOLLOW_EVERY_S)
                if os.fstat(file.fileno()).st_size < file.tell():  # bound_log truncated it
                    file.seek(0)
            else:
                return
