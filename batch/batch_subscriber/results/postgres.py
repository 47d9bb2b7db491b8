"""Results, and cancelled groups, in PostgreSQL."""

import time
from collections.abc import Collection
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg
from typing_extensions import override

from batch_subscriber.cancellations import Cancellations
from batch_subscriber.errors import ConfigurationError, ResultError, StoreUnavailableError
from batch_subscriber.jobs import Result
from batch_subscriber.results.interface import ResultStore
from batch_subscriber.urls import secret_file
from batch_subscriber.wire import decode_result, encode_result

#: Connections of one process, and how long one call may take, seconds.
MAX_CONNECTIONS: Final = 8
_ANSWER_S: Final = 30.0
#: A bytea value may have a gigabyte.
MAX_BYTES: Final = 500_000_000

#: `IF NOT EXISTS` still fails when two sessions make a table at once: they take turns by the lock.
_SCHEMA: Final = """
SELECT pg_advisory_xact_lock(7205759403792793);
CREATE TABLE IF NOT EXISTS headroom_batch_results (
    job_id text NOT NULL, generation text NOT NULL, data bytea NOT NULL,
    finished_at double precision NOT NULL, PRIMARY KEY (job_id, generation)
);
CREATE TABLE IF NOT EXISTS headroom_batch_cancelled (grp text PRIMARY KEY, at double precision NOT NULL);
"""


class PostgresResults(ResultStore, Cancellations):
    """Two tables, made when they are missing."""

    def __init__(self, dsn: str, password: str | None) -> None:
        """Use the database of `dsn`; the first call connects."""
        self._dsn = dsn
        self._password = password
        self._pool: Any = None
        self._is_made = False

    @override
    async def write(self, result: Result) -> bool:
        data = encode_result(result)
        if len(data) > MAX_BYTES:
            msg = f"the result has {len(data)} bytes, more than {MAX_BYTES}"
            raise ResultError(msg)
        done = await self._call(
            "execute",
            "INSERT INTO headroom_batch_results VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
            result.job_id, result.generation, data, result.finished_at,
        )  # fmt: skip
        return str(done).endswith(" 1")

    @override
    async def read(self, job_id: str, generation: str) -> Result | None:
        data = await self._call(
            "fetchval",
            "SELECT data FROM headroom_batch_results WHERE job_id = $1 AND generation = $2",
            job_id, generation,
        )  # fmt: skip
        return None if data is None else decode_result(data)

    @override
    async def exists(self, job_id: str, generation: str) -> bool:
        found = await self._call(
            "fetchval",
            "SELECT 1 FROM headroom_batch_results WHERE job_id = $1 AND generation = $2",
            job_id, generation,
        )  # fmt: skip
        return found is not None

    @override
    async def cancel(self, group: str) -> None:
        await self._call(
            "execute",
            "INSERT INTO headroom_batch_cancelled VALUES ($1, $2) ON CONFLICT DO NOTHING",
            group, time.time(),
        )  # fmt: skip

    @override
    async def cancelled(self, groups: Collection[str]) -> set[str]:
        if not groups:
            return set()
        rows = await self._call(
            "fetch", "SELECT grp FROM headroom_batch_cancelled WHERE grp = ANY($1::text[])", list(groups)
        )
        return {row["grp"] for row in rows}

    @override
    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()

    async def _call(self, method: str, statement: str, *values: object) -> Any:
        try:
            if self._pool is None:
                given = {} if self._password is None else {"password": self._password}
                self._pool = asyncpg.create_pool(
                    self._dsn, min_size=0, max_size=MAX_CONNECTIONS, command_timeout=_ANSWER_S, **given
                )
            await self._pool  # connects the first time, and does nothing afterwards
            if not self._is_made:
                await self._pool.execute(_SCHEMA)
                self._is_made = True
            return await getattr(self._pool, method)(statement, *values)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as failure:
            raise StoreUnavailableError(str(failure) or type(failure).__name__) from failure


async def open_results(url: str) -> PostgresResults:
    """Return the tables of `postgresql://USER@HOST:PORT/DATABASE[?password_file=PATH&sslmode=verify-full]`.

    Further parameters are those of PostgreSQL's own URLs. Raises ConfigurationError.
    """
    parts = urlsplit(url)
    given = parse_qsl(parts.query, keep_blank_values=True)
    files = [value for name, value in given if name == "password_file"]
    rest = urlencode([(name, value) for name, value in given if name != "password_file"])
    if not parts.path.strip("/"):
        msg = f"postgresql://...{parts.path} must name a database: postgresql://USER@HOST/DATABASE"
        raise ConfigurationError(msg)
    password = secret_file(files[0]) if files else None
    return PostgresResults(urlunsplit(("postgresql", parts.netloc, parts.path, rest, "")), password)
