"""The picker answers recorded exchanges of each API in each body mode as the transcripts say, byte for byte.

After a change that is meant, `make transcripts` records them anew with the real Envoy; review the difference.
"""

from pathlib import Path

import pytest

from ext_proc.body.apis import APIS
from ext_proc.exchange import Exchange
from record_transcripts import CASES, MODES, file_name, picking
from transcripts import FOLDER, load

FILES = sorted(FOLDER.glob("*.txt"))


def test_each_case_is_recorded_in_each_mode_and_each_api_has_one() -> None:
    assert {each.stem for each in FILES} == {file_name(case.name) for case in CASES}
    for file in FILES:
        assert [each.mode for each in load(file.read_text())] == list(MODES)
    assert {api.name for api in APIS} <= {case.name for case in CASES}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_picker_answers_as_recorded(file: Path, mode: str) -> None:
    (recorded,) = [each for each in load(file.read_text()) if each.mode == mode]
    processor, budget = picking(rewrites=file.stem.startswith("rewritten"))
    exchange = Exchange(processor, budget)
    for message, replies in recorded.steps():
        got = list(exchange.received(message, 1.0))
        while exchange.backlog is not None:
            got += exchange.more()
        assert got == replies
    status = exchange.status
    assert (f"{status.code.name}: {status.message}" if status and status.message else "") == recorded.status
    assert budget.held_bytes == 0
