"""When containers start again."""

import pytest

from local_cluster.node.backoff import Record, after_end, may_restart


def waits(run_s: float, times: int) -> list[float]:
    """Return how long each restart waits for a container that always ends after `run_s` seconds."""
    record, now, found = Record(), 0.0, []
    for _ in range(times):
        record = after_end(record, started=now, ended=now + run_s)
        found.append(record.not_before - (now + run_s))
        now = record.not_before
    return found


def test_the_first_restart_is_immediate_then_the_wait_doubles_up_to_five_minutes() -> None:
    assert waits(1, 8) == [0, 10, 20, 40, 80, 160, 300, 300]


def test_a_long_run_clears_the_record() -> None:
    record = after_end(Record(160, 1000), started=1000, ended=1600)
    assert record == Record(10, 1600)


@pytest.mark.parametrize(
    ("policy", "exit_code", "expected"),
    [
        ("Always", 0, True),
        ("Always", 1, True),
        ("OnFailure", 0, False),
        ("OnFailure", 137, True),
        ("Never", 1, False),
    ],
)
def test_the_policy_decides(policy: str, exit_code: int, expected: bool) -> None:
    assert may_restart(policy, exit_code) is expected
