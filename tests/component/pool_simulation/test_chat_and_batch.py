"""Batch jobs beside a chat on a simulated pool, in small; `make bench-batch_pool` does it with 2,000 jobs."""

from chat_and_batch import Beside, compare


def test_jobs_use_what_chat_leaves_and_cost_it_nothing() -> None:
    pool = Beside(servers=2, load=1.0, slots=80, jobs=400, seconds=90.0)
    made = compare(pool, seed=1)
    assert made.served == 400
    assert made.alone >= 0.98
    assert made.lost <= 0.02
    assert made.used >= 0.9
