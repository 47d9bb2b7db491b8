"""Batches: what is asked for, what is kept, and what the API shows."""

import pytest

from batch_subscriber.batches.api_errors import ApiError
from batch_subscriber.batches.records import Batch, Status, new_batch, read_batch, window_seconds

ASKED = {"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"}


def made(**changes: object) -> Batch:
    return new_batch({**ASKED, **changes}, batch_id="batch_1", generation="g" * 32, now=1000.0)


def test_a_batch_is_kept_whole() -> None:
    batch = made(metadata={"a": "b"}).at(Status.IN_PROGRESS, 1001.5, total=3, put=2, offset=99)
    finalizing = batch.at(Status.FINALIZING, 1002.0, outcome=Status.EXPIRED, output_file_id="file-o")
    failed = batch.at(
        Status.FAILED, 1002.0, errors=({"code": "c", "message": "m", "line": 1, "param": None},)
    )
    assert [read_batch(one.kept()) for one in (batch, finalizing, failed)] == [batch, finalizing, failed]


def test_files_are_shown_when_they_are_written() -> None:
    batch = made().at(Status.FINALIZING, 1002.0, outcome=Status.COMPLETED, output_file_id="file-o")
    assert batch.shown()["output_file_id"] is None
    shown = batch.at(Status.COMPLETED, 1003.0).shown()
    assert (shown["output_file_id"], shown["completed_at"], shown["finalizing_at"]) == ("file-o", 1003, 1002)
    assert (shown["created_at"], shown["expires_at"]) == (1000, 1000 + 86_400)


def test_two_uses_of_an_id_share_neither_jobs_nor_cancellation() -> None:
    other = new_batch(ASKED, batch_id="batch_1", generation="h" * 32, now=1000.0)
    assert made().job_id(0) == other.job_id(0) == "batch_1-000001"
    assert made().generation != other.generation
    assert made().group != other.group


@pytest.mark.parametrize(("window", "seconds"), [("24h", 86_400), ("30m", 1800), ("7d", 604_800)])
def test_windows(window: str, seconds: int) -> None:
    assert window_seconds(window) == seconds


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"completion_window": "24"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": "15d"}, "completion_window"),
        ({"completion_window": 24}, "completion_window"),
        ({"endpoint": "chat"}, "endpoint"),
        ({"endpoint": "/v1/chat\r\nx"}, "endpoint"),
        ({"endpoint": "/v1/../../admin"}, "endpoint"),
        ({"endpoint": "/v1//chat"}, "endpoint"),
        ({"endpoint": "/v1/"}, "endpoint"),
        ({"input_file_id": None}, "input_file_id"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"model": "m"}, "model"),
    ],
)
def test_a_bad_request_names_its_parameter(changes: dict[str, object], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        made(**changes)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(ApiError, match="JSON object"):
        new_batch([], batch_id="b", generation="g", now=1.0)
