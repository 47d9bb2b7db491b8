"""Results in files and in SQLite."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from batch_contracts import StoreContract, make_job, make_result
from batch_subscriber.errors import StoreUnavailableError
from batch_subscriber.opening import open_results
from batch_subscriber.results.files import FileResults
from batch_subscriber.results.interface import ResultStore


class TestFileResults(StoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[ResultStore]:
        made = await open_results(f"file:{tmp_path}/results")
        yield made
        await made.close()


class TestSqliteResults(StoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[ResultStore]:
        made = await open_results(f"sqlite:{tmp_path}/results.db")
        yield made
        await made.close()


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_files_leave_nothing_but_results(tmp_path: Path) -> None:
    store = FileResults(tmp_path)
    job = make_job(id="a/../b c")
    for _ in range(3):
        await store.write(make_result(job))
    (only,) = files_below(tmp_path)
    assert only == store.path(job.id, job.generation)
    assert only.name.startswith("a_.._b_c-")
    await store.close()


async def test_a_folder_that_cannot_be_written_is_unavailable_and_may_come(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file where the folder should be")
    store = FileResults(tmp_path / "results")
    with pytest.raises(StoreUnavailableError):
        await store.write(make_result(make_job()))
    (tmp_path / "results").unlink()
    assert await store.write(make_result(make_job()))
    await store.close()
