"""Replays the seeds and the inputs that once failed: every way of reading them agrees."""

import runpy
from pathlib import Path

import pytest

from response_fuzz import run

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.bin"))
SEEDS = runpy.run_path(str(Path(__file__).with_name("fuzz_responses.py")))["SEEDS"]


@pytest.mark.parametrize("data", [*SEEDS, *(path.read_bytes() for path in CORPUS)])
def test_every_way_of_reading_agrees(data: bytes) -> None:
    run(data)
