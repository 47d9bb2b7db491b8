"""How many rows a second a trainer takes."""

from latency_predictor.training.flood import RowLimit


def test_a_flood_is_cut_to_the_rate() -> None:
    limit = RowLimit(1000)
    taken = sum(100 for tick in range(1000) if limit.allows(100, tick / 100))
    # Ten seconds at 10,000 rows a second: the first second's rows at once, then 1,000 a second.
    assert 10_000 <= taken <= 11_000


def test_a_batch_above_the_rate_is_taken_when_nothing_else_came() -> None:
    limit = RowLimit(100)
    assert limit.allows(500, 0.0)
    assert not limit.allows(1, 0.5)
    assert limit.allows(1, 10.0)
