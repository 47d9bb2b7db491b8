"""Samples on disk: what a kill, a full disk or a damaged file costs."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from latency_contract.sample_wire import encode_batch
from latency_predictor.training import journal
from latency_predictor.training.journal import Damage, Journal, name_of, numbers, read, replace
from latency_samples import batch


def sizes(directory: Path, damage: Damage | None = None) -> list[int]:
    return [len(each) for each in read(directory, damage or Damage())]


def test_what_was_appended_is_read_after_a_restart(tmp_path: Path) -> None:
    first = Journal(tmp_path / "samples")
    assert first.append(encode_batch(batch(3)))
    assert first.append(encode_batch(batch(4)))
    second = Journal(tmp_path / "samples")
    assert second.append(encode_batch(batch(5)))
    assert numbers(tmp_path / "samples") == [1, 2]
    assert sizes(tmp_path / "samples") == [3, 4, 5]


@pytest.mark.parametrize("left", [1, 11, 12, 13, 400])
def test_a_record_that_a_kill_cut_short_is_left_out_and_the_rest_goes_on(tmp_path: Path, left: Any) -> None:
    first = Journal(tmp_path)
    first.append(encode_batch(batch(3)))
    first.append(encode_batch(batch(4)))
    path = tmp_path / name_of(1)
    whole = path.stat().st_size - len(journal.record(encode_batch(batch(4))))
    os.truncate(path, whole + left)
    Journal(tmp_path).append(encode_batch(batch(5)))
    damage = Damage()
    assert sizes(tmp_path, damage) == [3, 5]
    assert damage == Damage(files=1)


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    Journal(tmp_path).append(encode_batch(batch(3)))
    path = tmp_path / name_of(1)
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    damage = Damage()
    assert sizes(tmp_path, damage) == []
    assert damage.files == 1


def test_samples_of_another_schema_are_passed_over(tmp_path: Path) -> None:
    encoded = encode_batch(batch(3))
    one = Journal(tmp_path)
    one.append(encoded[:4] + b"\xff" * 8 + encoded[12:])
    one.append(encoded)
    damage = Damage()
    assert sizes(tmp_path, damage) == [3]
    assert damage == Damage(batches=1)


def test_a_full_disk_is_counted_and_the_next_batch_gets_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Journal(tmp_path)
    one.append(encode_batch(batch(3)))
    write = os.write

    def full(descriptor: int, content: bytes) -> int:
        write(descriptor, content[:50])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert not one.append(encode_batch(batch(4)))
    assert (one.errors, one.last_error) == (1, "No space left on device")
    monkeypatch.setattr(os, "write", write)
    assert one.append(encode_batch(batch(5)))
    assert sizes(tmp_path) == [3, 5]


def test_a_folder_that_cannot_be_written_costs_only_the_disk(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one = Journal(tmp_path / "file" / "samples")
    assert not one.append(encode_batch(batch(1)))
    assert one.errors == 1


def test_kept_samples_replace_the_files_before_them(tmp_path: Path) -> None:
    one = Journal(tmp_path)
    for count in (3, 4):
        one.append(encode_batch(batch(count)))
        one.rotate()
    below = one.rotate()
    one.append(encode_batch(batch(5)))
    replace(tmp_path, [encode_batch(batch(6))], below=below)
    assert sizes(tmp_path) == [6, 5]
    assert numbers(tmp_path) == [below - 1, below]


def test_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "FILE_BYTES", 10)
    monkeypatch.setattr(journal, "MOST_FILES", 3)
    one = Journal(tmp_path)
    for _ in range(5):
        one.append(encode_batch(batch(1)))
    assert len(numbers(tmp_path)) == 5
    journal.prune(tmp_path)
    assert numbers(tmp_path) == [3, 4, 5]
