"""Where files and batches are kept: a folder with a SQLite file, and a file for each file's content."""

import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from batch_subscriber.batches.api_errors import ApiError, not_found
from batch_subscriber.batches.records import Batch, File, read_batch
from batch_subscriber.errors import StoreUnavailableError
from batch_subscriber.sqlite_thread import SqliteFile

Change = Callable[[Batch], Batch]

VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS files (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, purpose TEXT NOT NULL,
    filename TEXT NOT NULL, size INTEGER NOT NULL, created_at REAL NOT NULL, expires_at REAL
);;
CREATE TABLE IF NOT EXISTS batches (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, input_file_id TEXT NOT NULL,
    is_open INTEGER NOT NULL, data TEXT NOT NULL, ended_at REAL
);;
CREATE INDEX IF NOT EXISTS batches_open ON batches (is_open, seq);;
CREATE TABLE IF NOT EXISTS done (
    batch TEXT NOT NULL, line INTEGER NOT NULL, is_failed INTEGER NOT NULL, PRIMARY KEY (batch, line)
) WITHOUT ROWID
"""
_SELECT: Final = "SELECT id, purpose, filename, size, created_at, expires_at FROM files"
_NEWEST: Final = """ WHERE (:after IS NULL OR seq < :after) AND (:purpose = '' OR purpose = :purpose)
ORDER BY seq DESC LIMIT :limit"""
_OLDEST: Final = """ WHERE (:after IS NULL OR seq > :after) AND (:purpose = '' OR purpose = :purpose)
ORDER BY seq ASC LIMIT :limit"""


class Storage:
    """The state of the API. One process at a time uses a folder."""

    def __init__(self, folder: Path, *, max_bytes: int, max_files: int, max_open: int) -> None:
        """Use `folder`: at most `max_files` files of `max_bytes` together, and `max_open` open batches."""
        self._contents = folder / "files"
        self._contents.mkdir(parents=True, exist_ok=True)
        for draft in self._contents.glob("*.part"):
            draft.unlink(missing_ok=True)
        self._db = SqliteFile(folder / "batches.db", _SCHEMA, VERSION, StoreUnavailableError)
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._max_open = max_open

    def path(self, file_id: str) -> Path:
        """Return where the content of a file is."""
        return self._contents / file_id

    def draft(self) -> "Draft":
        """Return a new file to be written."""
        return Draft(self._contents / f"{secrets.token_hex(12)}.part")

    async def add_file(self, draft: "Draft", file: File) -> None:
        """Keep what was written under the file's id, for good. Raises ApiError at the bounds."""
        draft.keep_as(self.path(file.id))
        try:
            await self._db.write(lambda db: self._insert(db, file, is_bounded=True))
        except ApiError:
            self.path(file.id).unlink(missing_ok=True)
            raise

    def _insert(self, db: sqlite3.Connection, file: File, *, is_bounded: bool) -> None:
        count, size = db.execute("SELECT count(*), coalesce(sum(size), 0) FROM files").fetchone()
        if is_bounded and (count + 1 > self._max_files or size + file.size > self._max_bytes):
            raise ApiError(
                413,
                f"{count} files of {size} bytes are kept, of at most {self._max_files} files and "
                f"{self._max_bytes} bytes: delete some first",
                code="storage_full",
            )
        db.execute(
            "INSERT OR REPLACE INTO files (id, purpose, filename, size, created_at, expires_at) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (file.id, file.purpose, file.filename, file.size, file.created_at, file.expires_at),
        )

    async def file(self, file_id: str, now: float) -> File:
        """Return a file. Raises ApiError when there is none."""
        row = await self._db.read(lambda db: db.execute(_SELECT + " WHERE id = ?", (file_id,)).fetchone())
        if row is None or (row[5] is not None and row[5] <= now):
            raise not_found("File", file_id)
        return _file(row)

    async def files(self, limit: int, after: str, purpose: str, *, newest_first: bool) -> list[File]:
        """Return up to `limit` files that follow the file `after`. Raises ApiError."""

        def act(db: sqlite3.Connection) -> list[File]:
            row = db.execute("SELECT seq FROM files WHERE id = ?", (after,)).fetchone()
            values = {"after": _place(row, "File", after), "purpose": purpose, "limit": limit}
            rows = db.execute(_SELECT + (_NEWEST if newest_first else _OLDEST), values)
            return [_file(row) for row in rows]

        return await self._db.read(act)

    async def delete_file(self, file_id: str) -> None:
        """Remove a file. Raises ApiError when there is none, or an open batch reads it."""

        def act(db: sqlite3.Connection) -> None:
            busy = db.execute(
                "SELECT id FROM batches WHERE input_file_id = ? AND is_open = 1", (file_id,)
            ).fetchone()
            if busy is not None:
                raise ApiError(400, f"Batch {busy[0]} reads this file: cancel it first", param="id")
            if not db.execute("DELETE FROM files WHERE id = ?", (file_id,)).rowcount:
                raise not_found("File", file_id)

        await self._db.write(act)
        self.path(file_id).unlink(missing_ok=True)

    async def add_batch(self, batch: Batch) -> None:
        """Keep a new batch. Raises ApiError when too many are open."""

        def act(db: sqlite3.Connection) -> None:
            (count,) = db.execute("SELECT count(*) FROM batches WHERE is_open = 1").fetchone()
            if count >= self._max_open:
                message = f"{count} batches are under way, the most there may be: try again later"
                raise ApiError(429, message, code="rate_limit_exceeded", kind="rate_limit_error")
            db.execute(
                "INSERT INTO batches (id, input_file_id, is_open, data) VALUES (?, ?, 1, ?)",
                (batch.id, batch.input_file_id, batch.kept()),
            )

        await self._db.write(act)

    async def batch(self, batch_id: str) -> Batch:
        """Return a batch. Raises ApiError when there is none."""
        return await self._db.read(lambda db: _batch(db, batch_id))

    async def batches(self, limit: int, after: str) -> list[Batch]:
        """Return up to `limit` batches, newest first, that follow the batch `after`. Raises ApiError."""

        def act(db: sqlite3.Connection) -> list[Batch]:
            row = db.execute("SELECT seq FROM batches WHERE id = ?", (after,)).fetchone()
            rows = db.execute(
                "SELECT data FROM batches WHERE (:after IS NULL OR seq < :after) "
                "ORDER BY seq DESC LIMIT :limit",
                {"after": _place(row, "Batch", after), "limit": limit},
            )
            return [read_batch(row[0]) for row in rows]

        return await self._db.read(act)

    async def open_batches(self) -> list[str]:
        """Return the ids of batches that are not at their end, oldest first."""
        rows = await self._db.read(
            lambda db: db.execute("SELECT id FROM batches WHERE is_open = 1 ORDER BY seq").fetchall()
        )
        return [row[0] for row in rows]

    async def change(self, batch_id: str, change: Change) -> Batch:
        """Replace a batch by what `change` makes of it, in one step; return it. Raises ApiError."""

        def act(db: sqlite3.Connection) -> Batch:
            batch = change(_batch(db, batch_id))
            _save(db, batch)
            return batch

        return await self._db.write(act)

    async def note_done(self, batch_id: str, lines: Sequence[tuple[int, bool]]) -> None:
        """Note lines that have a result, and whether it is a failure."""
        rows = [(batch_id, line, is_failed) for line, is_failed in lines]
        await self._db.write(lambda db: db.executemany("INSERT OR IGNORE INTO done VALUES (?, ?, ?)", rows))

    async def done(self, batch_id: str) -> dict[int, bool]:
        """Return the lines that have a result, and whether it is a failure."""
        rows = await self._db.read(
            lambda db: db.execute("SELECT line, is_failed FROM done WHERE batch = ?", (batch_id,)).fetchall()
        )
        return {line: bool(is_failed) for line, is_failed in rows}

    async def end(self, batch: Batch, files: Iterable[File], now: float) -> None:
        """Keep a batch that is at its end, with the files that its drafts have become."""

        def act(db: sqlite3.Connection) -> None:
            for file in files:
                self._insert(db, file, is_bounded=False)
            _save(db, batch)
            db.execute("UPDATE batches SET ended_at = ? WHERE id = ?", (now, batch.id))
            db.execute("DELETE FROM done WHERE batch = ?", (batch.id,))

        await self._db.write(act)

    async def forget(self, now: float, keep_s: float) -> None:
        """Remove files that have expired, and batches that ended `keep_s` ago."""

        def act(db: sqlite3.Connection) -> list[str]:
            db.execute("DELETE FROM batches WHERE is_open = 0 AND ended_at < ?", (now - keep_s,))
            rows = db.execute(
                "SELECT id FROM files WHERE expires_at <= ? AND id NOT IN "
                "(SELECT input_file_id FROM batches WHERE is_open = 1)",
                (now,),
            ).fetchall()
            db.executemany("DELETE FROM files WHERE id = ?", rows)
            return [row[0] for row in rows]

        for file_id in await self._db.write(act):
            self.path(file_id).unlink(missing_ok=True)

    async def close(self) -> None:
        """Close the SQLite file."""
        await self._db.close()


class Draft:
    """A file that is being written; it is gone unless it is kept."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO = path.open("xb")
        self.size = 0

    def write(self, data: bytes) -> None:
        """Write some more."""
        self._file.write(data)
        self.size += len(data)

    def keep_as(self, path: Path) -> None:
        """Make what was written durable under another name."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._path.rename(path)
        number = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)

    def discard(self) -> None:
        """Remove it, unless it was kept."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def _file(row: Sequence[Any]) -> File:
    file_id, purpose, filename, size, created_at, expires_at = row
    return File(
        id=file_id,
        purpose=purpose,
        filename=filename,
        size=size,
        created_at=created_at,
        expires_at=expires_at,
    )


def _batch(db: sqlite3.Connection, batch_id: str) -> Batch:
    row = db.execute("SELECT data FROM batches WHERE id = ?", (batch_id,)).fetchone()
    if row is None:
        raise not_found("Batch", batch_id)
    return read_batch(row[0])


def _save(db: sqlite3.Connection, batch: Batch) -> None:
    db.execute(
        "UPDATE batches SET data = ?, is_open = ? WHERE id = ?",
        (batch.kept(), not batch.status.is_end, batch.id),
    )


def _place(row: Sequence[int] | None, what: str, after: str) -> int | None:
    """Return the place of the record that a page comes after, None for the first page."""
    if row is None and after:
        raise not_found(what, after)
    return None if row is None else row[0]
