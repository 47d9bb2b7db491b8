"""The output and error file of a batch."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator

from batch_subscriber.batches.lines import Asked, is_success, outcome_line, read_line
from batch_subscriber.batches.records import Batch, File, Status
from batch_subscriber.batches.storage import Draft, Storage
from batch_subscriber.jobs import Cause, Result
from batch_subscriber.results.interface import ResultStore

#: Results that are read ahead of the one that is written.
_AHEAD = 16


async def write_files(
    batch: Batch, storage: Storage, results: ResultStore, *, now: float, keep_s: float
) -> None:
    """Write the files of a batch and end it. Doing it again writes the same files.

    Requests without a result are errors: cancelled or expired, as the batch's outcome is.
    """
    outcome = batch.outcome or Status.COMPLETED
    missing = Cause.CANCELLED if outcome is Status.CANCELLED else Cause.EXPIRED
    good, bad = _Part(storage.draft()), _Part(storage.draft())
    try:
        async for line, asked, result in _outcomes(batch, storage, results):
            part = good if result is not None and is_success(result) else bad
            name = f"{batch.id.removeprefix('batch_')}{line + 1:06d}"
            part.write(outcome_line(name, asked.custom_id, result, missing))
        files = []
        for part, kind, name_or_none in (
            (good, "output", batch.output_file_id),
            (bad, "error", batch.error_file_id),
        ):
            if part.count and name_or_none is not None:
                part.draft.keep_as(storage.path(name_or_none))
                files.append(
                    File(
                        id=name_or_none,
                        purpose="batch_output",
                        filename=f"{batch.id}_{kind}.jsonl",
                        size=part.draft.size,
                        created_at=now,
                        expires_at=now + keep_s,
                    )
                )
        ended = batch.at(
            outcome,
            now,
            completed=good.count,
            failed=bad.count,
            output_file_id=batch.output_file_id if good.count else None,
            error_file_id=batch.error_file_id if bad.count else None,
        )
        await storage.end(ended, files, now)
    finally:
        good.draft.discard()
        bad.draft.discard()


class _Part:
    """One of the two files, and how many lines it has."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.count = 0

    def write(self, line: bytes) -> None:
        self.draft.write(line)
        self.count += 1


async def _outcomes(
    batch: Batch, storage: Storage, results: ResultStore
) -> AsyncIterator[tuple[int, Asked, Result | None]]:
    """Yield every line's request and result, in order, some results read ahead."""
    ahead: deque[tuple[int, Asked, asyncio.Task[Result | None]]] = deque()
    loop = asyncio.get_running_loop()
    try:
        for line, asked in _all_lines(batch, storage):
            reading = loop.create_task(results.read(batch.job_id(line), batch.generation))
            ahead.append((line, asked, reading))
            if len(ahead) >= _AHEAD:
                first, first_asked, reading = ahead.popleft()
                yield first, first_asked, await reading
        while ahead:
            first, first_asked, reading = ahead.popleft()
            yield first, first_asked, await reading
    finally:
        rest = [entry[2] for entry in ahead]
        for reading in rest:
            reading.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


def _all_lines(batch: Batch, storage: Storage) -> Iterator[tuple[int, Asked]]:
    number = 0
    if batch.total == 0:
        return
    with storage.path(batch.input_file_id).open("rb") as file:
        for text in file:
            if number >= batch.total:
                return
            if text.strip():
                yield number, read_line(text)
                number += 1
