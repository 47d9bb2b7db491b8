"""Replays the corpus, one input for each behaviour: no exception, bounds kept, any split the same."""

from pathlib import Path

import pytest

from lean_fuzz import run

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.bin"))


@pytest.mark.parametrize("path", CORPUS, ids=[path.stem for path in CORPUS])
def test_input_does_no_harm(path: Path) -> None:
    assert run(path.read_bytes())
