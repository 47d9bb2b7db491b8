"""Trees as the prediction server evaluates them, beside XGBoost itself."""

from pathlib import Path

import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st

from latency_bundle import margins, rows_of, trees
from latency_contract.schema import WIDTH
from latency_predictor.serving import kernel
from latency_predictor.serving.forest import ForestError, read
from latency_predictor.serving.ubj import UbjError, decode


@pytest.mark.parametrize(("rounds", "depth"), [(1, 1), (5, 3), (40, 6), (3, 9)])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 200])
def test_sums_are_equal_to_those_of_xgboost(rounds: int, depth: int, rows: int) -> None:
    content = trees(rounds, depth)
    matrix = rows_of(rows, seed=7)
    expected = margins(content, matrix)
    forest = read(content, width=WIDTH, heads=2)
    np.testing.assert_allclose(kernel.sums_of(forest, matrix), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(kernel.sums_in_numpy(forest, matrix), expected, rtol=0, atol=1e-5)


@given(st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=WIDTH, max_size=WIDTH))
@settings(deadline=None, max_examples=100)
def test_any_row_gives_what_xgboost_gives(values: list[float]) -> None:
    content = trees()
    matrix = np.array([values], dtype=np.float32)
    matrix[np.isinf(matrix)] = 3e38  # XGBoost refuses infinity
    expected = margins(content, matrix)
    np.testing.assert_allclose(
        kernel.sums_of(read(content, width=WIDTH, heads=2), matrix), expected, atol=1e-5
    )


def test_values_at_a_threshold_go_right_as_in_xgboost() -> None:
    content = trees()
    forest = read(content, width=WIDTH, heads=2)
    rows = rows_of(64, seed=3)
    for column in range(WIDTH):
        cuts = forest.cuts[forest.cuts_from[column] : forest.cuts_from[column + 1]]
        if cuts.size:
            rows[:, column] = np.resize(cuts, len(rows))
    np.testing.assert_allclose(kernel.sums_of(forest, rows), margins(content, rows), atol=1e-5)


def test_a_model_without_trees_adds_nothing() -> None:
    forest = read(trees(0), width=WIDTH, heads=2)
    np.testing.assert_array_equal(kernel.sums_of(forest, rows_of(3)), np.zeros((2, 3)))
    np.testing.assert_array_equal(kernel.sums_in_numpy(forest, rows_of(3)), np.zeros((2, 3)))


def test_a_read_only_matrix_of_the_wire_is_evaluated() -> None:
    matrix = rows_of(3)
    matrix.setflags(write=False)
    assert kernel.sums_of(read(trees(), width=WIDTH, heads=2), matrix).shape == (2, 3)


@pytest.mark.parametrize("cut", [0, 1, 100, 5_000])
def test_a_model_that_ends_early_is_refused(cut: int) -> None:
    with pytest.raises(ForestError):
        read(trees()[:cut], width=WIDTH, heads=2)


def test_a_model_of_more_heads_or_columns_than_expected_is_refused() -> None:
    with pytest.raises(ForestError, match="heads"):
        read(trees(), width=WIDTH, heads=1)
    with pytest.raises(ForestError, match="column"):
        read(trees(), width=2, heads=2)


@given(st.integers(0, 10**6), st.integers(0, 255))
@settings(deadline=None, max_examples=150)
def test_a_changed_byte_gives_a_model_or_a_clear_error(place: int, value: int) -> None:
    content = bytearray(trees(2, 3))
    content[place % len(content)] = value
    try:
        forest = read(bytes(content), width=WIDTH, heads=2)
    except ForestError:
        return
    assert kernel.sums_of(forest, rows_of(4)).shape == (2, 4)


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    try:
        decode(content)
    except UbjError:
        return


def test_ubjson_is_read_as_xgboost_writes_it() -> None:
    booster = xgboost.Booster()
    booster.load_model(bytearray(trees()))
    whole = decode(bytes(booster.save_raw("ubj")))
    assert whole["learner"]["learner_model_param"]["num_feature"] == str(WIDTH)


@pytest.mark.skipif(not kernel.IS_COMPILED, reason="there is no numba here")
def test_a_damaged_folder_of_compiled_code_costs_the_time_to_compile_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernel, "_compiled", kernel._jitted(cache=True))
    forest, matrix = read(trees(), width=WIDTH, heads=2), rows_of(20)
    expected = kernel.sums_in_numpy(forest, matrix)
    assert kernel.compile_kernel() == ""
    kept = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert kept
    for damaged in kept:
        damaged.write_bytes(b"\x80damaged")
    monkeypatch.setattr(kernel, "_compiled", kernel._jitted(cache=True))
    assert "is not used" in kernel.compile_kernel()
    np.testing.assert_array_equal(kernel.sums_of(forest, matrix), expected)


def test_without_numba_a_warning_says_so_and_the_sums_are_those_of_numpy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel, "numba", None)
    monkeypatch.setattr(kernel, "_compiled", kernel._walk_in_numpy)
    assert "numba is not installed" in kernel.compile_kernel()
    content, matrix = trees(), rows_of(20)
    sums = kernel.sums_of(read(content, width=WIDTH, heads=2), matrix)
    np.testing.assert_allclose(sums, margins(content, matrix), rtol=0, atol=1e-5)
