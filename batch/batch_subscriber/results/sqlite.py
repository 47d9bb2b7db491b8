"""Results in one SQLite file, shared by the processes of one machine."""

import sqlite3
from pathlib import Path
from typing import Final

from typing_extensions import override

from batch_subscriber.errors import StoreUnavailableError
from batch_subscriber.jobs import Result
from batch_subscriber.results.interface import ResultStore
from batch_subscriber.sqlite_thread import SqliteFile
from batch_subscriber.urls import file_url
from batch_subscriber.wire import decode_result, encode_result

VERSION: Final = 1

_SCHEMA: Final = """
CREATE TABLE results (
    job_id TEXT NOT NULL, generation TEXT NOT NULL, grp TEXT NOT NULL, finished_at REAL NOT NULL,
    data BLOB NOT NULL,
    UNIQUE (job_id, generation)
);;
CREATE INDEX results_group ON results (grp)
"""


class SqliteResults(ResultStore):
    """A row for each result; `data` has its JSON."""

    def __init__(self, path: Path) -> None:
        """Use the file at `path`."""
        self._file = SqliteFile(path, _SCHEMA, VERSION, StoreUnavailableError)

    @override
    async def write(self, result: Result) -> bool:
        row = (
            result.job_id, result.generation, result.group, result.finished_at, encode_result(result),
        )  # fmt: skip
        return await self._file.write(
            lambda db: db.execute("INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?, ?)", row).rowcount > 0
        )

    @override
    async def read(self, job_id: str, generation: str) -> Result | None:
        def act(db: sqlite3.Connection) -> bytes | None:
            row = db.execute(
                "SELECT data FROM results WHERE job_id = ? AND generation = ?", (job_id, generation)
            ).fetchone()
            return None if row is None else row[0]

        data = await self._file.read(act)
        return None if data is None else decode_result(data)

    @override
    async def exists(self, job_id: str, generation: str) -> bool:
        def act(db: sqlite3.Connection) -> bool:
            row = db.execute(
                "SELECT 1 FROM results WHERE job_id = ? AND generation = ?", (job_id, generation)
            ).fetchone()
            return row is not None

        return await self._file.read(act)

    @override
    async def close(self) -> None:
        await self._file.close()


async def open_results(url: str) -> SqliteResults:
    """Return the store of `sqlite:/PATH`. Raises ConfigurationError."""
    return SqliteResults(Path(file_url(url).path))
