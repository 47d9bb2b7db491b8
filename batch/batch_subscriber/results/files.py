"""Results as files of a folder, one JSON file each.

A result is written under another name, synced, and linked to its own name, which fails when that is taken. So
the first one stays, and a reader sees a whole result or none. The file system needs hard links.
"""

import asyncio
import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from typing_extensions import override

from batch_subscriber.errors import StoreUnavailableError
from batch_subscriber.jobs import Result
from batch_subscriber.results.interface import ResultStore
from batch_subscriber.urls import file_url
from batch_subscriber.wire import decode_result, encode_result

T = TypeVar("T")

#: Writes whose syncs may wait for the disk side by side.
_THREADS: Final = 4
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


class FileResults(ResultStore):
    """A folder of results: `FOLDER/ab/ID-ab12....json`, by the hash of id and generation."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`; it is made when it is first written to."""
        self._folder = folder
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="results")

    def path(self, job_id: str, generation: str) -> Path:
        """Return the file that a job's result has."""
        digest = hashlib.sha256(f"{job_id}\0{generation}".encode()).hexdigest()[:40]
        legible = _UNSAFE.sub("_", job_id)[:100]
        return self._folder / digest[:2] / f"{legible}-{digest}.json"

    @override
    async def write(self, result: Result) -> bool:
        path = self.path(result.job_id, result.generation)
        return await self._in_thread(lambda: _write_once(path, encode_result(result)))

    @override
    async def read(self, job_id: str, generation: str) -> Result | None:
        path = self.path(job_id, generation)

        def act() -> bytes | None:
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None

        data = await self._in_thread(act)
        return None if data is None else decode_result(data)

    @override
    async def exists(self, job_id: str, generation: str) -> bool:
        return await self._in_thread(self.path(job_id, generation).exists)

    @override
    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)

    async def _in_thread(self, act: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, act)
        except OSError as failure:
            raise StoreUnavailableError(str(failure)) from failure


def _write_once(path: Path, data: bytes) -> bool:
    if path.exists():
        return False
    if not path.parent.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _sync_folder(path.parent.parent)
    draft = path.with_name(f".{secrets.token_hex(12)}.part")
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
    _sync_folder(path.parent)
    return True


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


async def open_results(url: str) -> FileResults:
    """Return the store of `file:/FOLDER`. Raises ConfigurationError."""
    return FileResults(Path(file_url(url).path))
