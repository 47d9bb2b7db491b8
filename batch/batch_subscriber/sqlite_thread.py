"""One SQLite file, used from one thread; what is asked for meanwhile shares the next transaction.

A durable commit waits for the disk. All calls that arrive during one commit are made in the next transaction,
each under a savepoint of its own, so that the rate of calls is not bound by the rate of the disk's syncs.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from batch_subscriber.errors import BatchError, ConfigurationError

T = TypeVar("T")
Act = Callable[[sqlite3.Connection], T]

#: Calls of one transaction.
_MOST_CALLS: Final = 256
#: How long a transaction waits for another process's.
_BUSY_S: Final = 10.0

_Call = tuple[Act[Any], bool, "asyncio.Future[Any]"]


class SqliteFile:
    """A SQLite file with a schema, for one event loop."""

    def __init__(
        self, path: Path, schema: str, version: int, unavailable: Callable[[str], BatchError]
    ) -> None:
        """Take the file at `path`; it is made when it is first used.

        `schema` has its statements with `;;` between. `version` is the schema's: a file of another one is
        refused. `unavailable` makes the error that is raised when SQLite cannot do what it was asked for.
        """
        self._path = path
        self._schema = schema
        self._version = version
        self._unavailable = unavailable
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sqlite")
        self._connection: sqlite3.Connection | None = None
        self._pending: list[_Call] = []
        self._running: asyncio.Future[None] | None = None

    async def write(self, act: Act[T]) -> T:
        """Call `act` in a transaction; return its value once that is on the disk.

        `act` is undone alone when it raises a BatchError, which is passed on.
        """
        return await self._ask(act, writes=True)

    async def read(self, act: Act[T]) -> T:
        """Call `act` for a value that it only reads; no other process has to wait for it."""
        return await self._ask(act, writes=False)

    async def close(self) -> None:
        """Finish the calls under way and close the file."""
        while self._running is not None:
            await asyncio.wait({self._running})
            await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown()

    async def _ask(self, act: Act[T], *, writes: bool) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._pending.append((act, writes, future))
        if self._running is None:
            self._next()
        return await future

    def _next(self) -> None:
        calls, self._pending = self._pending[:_MOST_CALLS], self._pending[_MOST_CALLS:]
        calls = [call for call in calls if not call[2].done()]
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._thread, self._transact, [call[:2] for call in calls])
        self._running = asyncio.ensure_future(self._answer(calls, running))

    async def _answer(self, calls: list[_Call], running: "asyncio.Future[list[Any]]") -> None:
        outcomes = await running
        for (_, _, future), outcome in zip(calls, outcomes, strict=True):
            if future.done():
                continue
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        self._running = None
        if self._pending:
            self._next()

    # In the thread.

    def _transact(self, calls: list[tuple[Act[Any], bool]]) -> list[Any]:
        """Return the value or the error of each call."""
        if not calls:
            return []
        try:
            connection = self._connect()
            connection.execute("BEGIN IMMEDIATE" if any(writes for _, writes in calls) else "BEGIN")
            outcomes = [self._call(connection, act) for act, _ in calls]
            connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as failure:
            self._disconnect()
            return [self._unavailable(f"{self._path}: {failure}") for _ in calls]
        except ConfigurationError as wrong:
            self._disconnect()
            return [wrong for _ in calls]
        return outcomes

    def _call(self, connection: sqlite3.Connection, act: Act[Any]) -> Any:
        connection.execute("SAVEPOINT one")
        try:
            outcome = act(connection)
        except sqlite3.Error:
            raise
        except Exception as failure:
            connection.execute("ROLLBACK TO one")
            outcome = failure
        connection.execute("RELEASE one")
        return outcome

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("BEGIN IMMEDIATE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            for statement in self._schema.split(";;"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={self._version}")
        elif version != self._version:
            msg = f"{self._path} has the layout {version}; this version reads {self._version}"
            raise ConfigurationError(msg)
        connection.execute("COMMIT")

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()
