"""Samples on disk: batches appended to numbered files, so that a trainer that dies goes on where it was.

A file is a row of records: magic `HPJ1`, CRC-32 of the batch, its length (u32 each), the batch as on the wire
(`latency_contract.sample_wire`). A kill in mid-write leaves a record that is cut short or whose checksum is
wrong: reading stops there, and the next file goes on. A full disk costs samples on disk, never those in
memory.
"""

import os
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from latency_contract.errors import ContractError
from latency_contract.sample_wire import SampleBatch, decode_batch

#: Bytes after which a file is closed and the next begun.
FILE_BYTES: Final = 4 << 20
#: Files that are read at a start, newest last; older ones are deleted.
MOST_FILES: Final = 64

_RECORD: Final = struct.Struct("<4sII")
_MAGIC: Final = b"HPJ1"
_NAME: Final = re.compile(r"samples-([0-9]{10})\.journal")


def record(batch: bytes) -> bytes:
    """Return the bytes of one record."""
    return _RECORD.pack(_MAGIC, zlib.crc32(batch), len(batch)) + batch


@dataclass(slots=True)
class Damage:
    """What could not be read."""

    files: int = 0
    """Whose rest was left out."""
    batches: int = 0
    """Whole records under another schema, or with contents that are no batch."""


class Journal:
    """Appends to the newest file of a directory. One process writes, any may read."""

    def __init__(self, directory: Path) -> None:
        """Begin a file after the last one there is; nothing is written before the first batch."""
        self._directory = directory
        self._number = max(numbers(directory), default=0) + 1
        self._descriptor: int | None = None
        self._size = 0
        self.errors = 0
        """Batches that could not be written."""
        self.last_error = ""

    @property
    def number(self) -> int:
        """Return the number of the file that the next batch goes to."""
        return self._number

    def append(self, batch: bytes) -> bool:
        """Write a batch; False, with the reason in `last_error`, when the disk is full or not writable."""
        try:
            if self._descriptor is None:
                self._directory.mkdir(parents=True, exist_ok=True)
                path = self._directory / name_of(self._number)
                self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                self._size = 0
            content = record(batch)
            if os.write(self._descriptor, content) != len(content):
                raise OSError("a record was written in part")
        except OSError as error:
            # The file may end within a record now, and what follows that would not be read.
            self.errors += 1
            self.last_error = error.strerror or str(error)
            self.rotate()
            return False
        self._size += len(content)
        if self._size >= FILE_BYTES:
            self.rotate()
        return True

    def rotate(self) -> int:
        """Close the file, if one is open; return the number of the next. Files below it no longer change."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            self._number += 1
        return self._number


def name_of(number: int) -> str:
    """Return the name of a file."""
    return f"samples-{number:010d}.journal"


def numbers(directory: Path) -> list[int]:
    """Return the numbers of the files of a directory, ascending."""
    try:
        names = [each.name for each in directory.iterdir()]
    except OSError:  # it is not there, or cannot be read: then it cannot be written either, which is counted
        return []
    return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))


def read(directory: Path, damage: Damage, *, below: int | None = None) -> Iterator[SampleBatch]:
    """Yield the batches of all files whose number is less than `below`, oldest first; count what is
    damaged."""
    for number in numbers(directory)[-MOST_FILES:]:
        if below is None or number < below:
            yield from _file(directory / name_of(number), damage)


def _file(path: Path, damage: Damage) -> Iterator[SampleBatch]:
    try:
        content = path.read_bytes()
    except OSError:
        damage.files += 1
        return
    at = 0
    while at < len(content):
        if len(content) - at < _RECORD.size:
            damage.files += 1
            return
        magic, checksum, size = _RECORD.unpack_from(content, at)
        at += _RECORD.size
        batch = content[at : at + size]
        if magic != _MAGIC or len(batch) != size or zlib.crc32(batch) != checksum:
            damage.files += 1
            return
        at += size
        try:
            yield decode_batch(batch)
        except ContractError:
            damage.batches += 1


def replace(directory: Path, batches: list[bytes], *, below: int) -> None:
    """Write `batches` as the only file below `below`, by one rename, and delete those that it replaces.

    `below` is a number that `rotate` returned. Raises OSError when the disk is full; the files then stay.
    """
    old = [number for number in numbers(directory) if number < below]
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = directory / ".unfinished-journal"
    try:
        with unfinished.open("wb") as file:
            for batch in batches:
                file.write(record(batch))
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(directory / name_of(below - 1))
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    for number in old:
        if number != below - 1:
            (directory / name_of(number)).unlink(missing_ok=True)


def prune(directory: Path) -> None:
    """Delete the oldest files beyond MOST_FILES: a trainer that cannot compact must not fill its disk."""
    for number in numbers(directory)[:-MOST_FILES]:
        (directory / name_of(number)).unlink(missing_ok=True)
