"""`headroom-batch submit`: hand a file of requests to the API, watch it, and fetch its files."""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from batch_subscriber.batches.lines import MAX_LINES, check_file, read_line
from batch_subscriber.errors import BatchError, ConfigurationError

_LOOK_S: Final = 1.0
#: How often a line is printed where there is no terminal for a bar, seconds.
_LINE_S: Final = 10.0
#: Waits between tries while the API does not answer, seconds.
_AGAIN_S: Final = (0.5, 1.0, 2.0, 5.0)
_ANSWER_S: Final = 60.0
_CHUNK: Final = 256 * 1024
_ENDS: Final = ("completed", "failed", "expired", "cancelled")
_INTERRUPTED: Final = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("file", type=Path, help="JSON lines with custom_id, method, url and body")
    parser.add_argument(
        "--server", default="http://127.0.0.1:8321/v1", help="URL of the API (http://127.0.0.1:8321/v1)"
    )
    parser.add_argument("--token-file", type=Path, help="file with the API's token")
    parser.add_argument(
        "--window", default="24h", help="time in which the batch is to be done, e.g. 30m, 24h, 7d"
    )
    parser.add_argument(
        "--watch", action="store_true", help="show progress until the end, then fetch the files"
    )
    parser.add_argument("--again", action="store_true", help="hand it in anew, though it has been handed in")


def run(given: argparse.Namespace) -> int:
    """Run the command; return 0: all is done, 1: some is not, 2: a bad file or flag, 130: Ctrl-C."""
    file: Path = given.file
    endpoint = _checked(file)
    if endpoint is None:
        return 2
    # A shell starts background commands with SIGINT ignored; here it ends the watch.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return asyncio.run(_submit(given, endpoint))
    except KeyboardInterrupt:
        print(f"\nThe batch goes on. To watch it: headroom-batch submit {file} --watch", file=sys.stderr)
        return _INTERRUPTED


def _checked(file: Path) -> str | None:
    """Return the endpoint of a file's requests; print what is wrong with it, and return None."""
    try:
        with file.open("rb") as lines:
            _, faults = check_file(lines, "", MAX_LINES)
        if not faults:
            with file.open("rb") as lines:
                return next(read_line(line).url for line in lines if line.strip())
    except OSError as unreadable:
        print(f"{file}: {unreadable.strerror}", file=sys.stderr)
        return None
    for fault in faults:
        where = f"{file}:{fault.line}" if fault.line is not None else str(file)
        print(f"{where}: {fault.message}", file=sys.stderr)
    return None


class ApiFaultError(BatchError):
    """The API refused, or answered something that is none of its answers."""


@dataclass(frozen=True, slots=True)
class _State:
    """What has been handed in: beside the file, so that the same command goes on with it."""

    path: Path
    server: str
    digest: str

    def batch_id(self) -> str:
        """Return the batch of this file at this server, "" for none."""
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return ""
        is_same = isinstance(kept, dict) and (kept.get("server"), kept.get("sha256")) == (
            self.server,
            self.digest,
        )
        return str(kept["batch_id"]) if is_same and "batch_id" in kept else ""

    def keep(self, batch_id: str) -> None:
        """Note the batch."""
        values = {"server": self.server, "sha256": self.digest, "batch_id": batch_id}
        _replace(self.path, lambda draft: draft.write_text(json.dumps(values) + "\n", encoding="utf-8"))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    draft = path.with_name(f".{path.name}.part")
    write(draft)
    draft.rename(path)


class _Client:
    """Calls of the API. What is read is asked for again while the API does not answer."""

    def __init__(self, session: aiohttp.ClientSession, server: str, headers: dict[str, str]) -> None:
        self._session = session
        self._server = server.rstrip("/")
        self._headers = headers

    async def upload(self, file: Path) -> str:
        """Return the id of the uploaded file."""
        with file.open("rb") as content:
            form = aiohttp.FormData()
            form.add_field("purpose", "batch")
            form.add_field("file", content, filename=file.name, content_type="application/jsonl")
            page = await self._send("POST", "/files", data=form)
        return str(page["id"])

    async def create(self, file_id: str, endpoint: str, window: str) -> dict[str, Any]:
        """Return a new batch."""
        asked = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": window}
        return await self._send("POST", "/batches", json=asked)

    async def batch(self, batch_id: str) -> dict[str, Any] | None:
        """Return a batch, None when there is none."""
        async with self._patiently(f"/batches/{batch_id}") as answer:
            return None if answer.status == 404 else await _page(answer)

    async def fetch(self, file_id: str, path: Path) -> None:
        """Write the content of a file to `path`."""
        async with self._patiently(f"/files/{file_id}/content") as answer:
            if answer.status != 200:
                await _page(answer)
            draft = path.with_name(f".{path.name}.part")
            with draft.open("wb") as out:
                async for chunk in answer.content.iter_chunked(_CHUNK):
                    out.write(chunk)
            draft.rename(path)

    async def _send(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        try:
            async with self._session.request(
                method, self._server + path, headers=self._headers, **body
            ) as answer:
                return await _page(answer)
        except (aiohttp.ClientError, TimeoutError) as failure:
            msg = f"{self._server} does not answer: {str(failure) or type(failure).__name__}"
            raise ApiFaultError(msg) from failure

    @contextlib.asynccontextmanager
    async def _patiently(self, path: str) -> AsyncIterator[aiohttp.ClientResponse]:
        tries = 0
        while True:
            try:
                answer = await self._session.get(self._server + path, headers=self._headers)
            except (aiohttp.ClientError, TimeoutError) as failure:
                if tries == 0:
                    print(f"{self._server} does not answer ({failure}); trying again", file=sys.stderr)
            else:
                if answer.status < 500:
                    break
                answer.release()
            await asyncio.sleep(_AGAIN_S[min(tries, len(_AGAIN_S) - 1)])
            tries += 1
        async with answer:
            yield answer


async def _page(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    """Return the JSON of an answer. Raises ApiFaultError with the sentence of a refusal."""
    try:
        page = await answer.json(content_type=None)
        if answer.status == 200 and isinstance(page, dict):
            return page
        said = str(page["error"]["message"])
    except (ValueError, KeyError, TypeError):
        said = "no answer of the batches API: is --server right?"
    msg = f"{answer.url}: {answer.status}: {said}"
    raise ApiFaultError(msg)


async def _submit(given: argparse.Namespace, endpoint: str) -> int:
    file: Path = given.file
    headers = {}
    if given.token_file is not None:
        try:
            headers["Authorization"] = f"Bearer {given.token_file.read_text(encoding='utf-8').strip()}"
        except (OSError, UnicodeDecodeError) as fault:
            msg = f"--token-file {given.token_file} cannot be read: {fault}"
            raise ConfigurationError(msg) from fault
    digest = await asyncio.to_thread(_digest, file)
    state = _State(file.with_name(f"{file.name}.batch"), given.server, digest)
    limit = aiohttp.ClientTimeout(total=None, sock_connect=_ANSWER_S, sock_read=_ANSWER_S)
    async with aiohttp.ClientSession(timeout=limit) as session:
        client = _Client(session, given.server, headers)
        batch = None
        if not given.again and (known := state.batch_id()):
            batch = await client.batch(known)
        if batch is None:
            batch = await client.create(await client.upload(file), endpoint, given.window)
            state.keep(batch["id"])
            print(f"Handed in as {batch['id']}.")
        else:
            print(f"{file} has been handed in as {batch['id']}, which is {batch['status']}.")
        if not given.watch:
            return 0
        batch = await _watch(client, batch)
        return await _fetch(client, batch, file)


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


async def _watch(client: _Client, batch: dict[str, Any]) -> dict[str, Any]:
    """Show progress until the batch is at its end; return it."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[failed]}"), TextColumn("ETA"), TimeRemainingColumn(),
    )  # fmt: skip
    printed_at = -_LINE_S
    is_seen = console.is_terminal
    with Progress(*columns, console=console, speed_estimate_period=60, disable=not is_seen) as bar:
        task = bar.add_task(batch["status"], total=None, failed="")
        while True:
            counts = batch["request_counts"]
            done = counts["completed"] + counts["failed"]
            failed = f"{counts['failed']} failed" if counts["failed"] else ""
            bar.update(
                task,
                description=batch["status"],
                completed=done,
                total=counts["total"] or None,
                failed=failed,
            )
            if not is_seen and time.monotonic() - printed_at >= _LINE_S:
                printed_at = time.monotonic()
                print(f"{batch['status']}: {done} of {counts['total']} {failed}".rstrip(), file=sys.stderr)
            if batch["status"] in _ENDS:
                return batch
            await asyncio.sleep(_LOOK_S)
            found = await client.batch(batch["id"])
            if found is None:
                msg = f"{batch['id']} is gone: the API's state was lost or cleared. Hand the file in anew"
                raise ApiFaultError(msg)
            batch = found


async def _fetch(client: _Client, batch: dict[str, Any], file: Path) -> int:
    """Fetch the files of an ended batch; return the exit status."""
    counts = batch["request_counts"]
    print(f"{batch['id']} is {batch['status']}: {counts['completed']} done, {counts['failed']} failed.")
    for fault in (batch.get("errors") or {}).get("data") or ():
        where = f"{file}:{fault['line']}" if fault.get("line") else str(file)
        print(f"{where}: {fault['message']}", file=sys.stderr)
    for kind, name in (("output", batch.get("output_file_id")), ("errors", batch.get("error_file_id"))):
        if name:
            path = file.with_name(f"{file.name.removesuffix('.jsonl')}.{kind}.jsonl")
            await client.fetch(name, path)
            print(f"{kind}: {os.fspath(path)}")
    return 0 if batch["status"] == "completed" and not counts["failed"] else 1
