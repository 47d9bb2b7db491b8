"""Inputs that each showed a behaviour of their own, replayed: no exception, balanced books, any split."""

from pathlib import Path

import pytest

from lean_fuzz import run

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.bin"))


@pytest.mark.parametrize("path", CORPUS, ids=[path.stem for path in CORPUS])
def test_input_does_no_harm(path: Path) -> None:
    assert run(path.read_bytes())
