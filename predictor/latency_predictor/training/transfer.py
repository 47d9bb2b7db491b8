"""What an older trainer gives a newer one, and what an export holds: bundles and samples, as messages. Pure.

A stream of messages, each a kind (u8) and bytes: `VERSION` (its name) begins a bundle, `FILE` (u8 length,
name, content) is one of its files in pieces of at most PIECE bytes, `END` ends it; `SAMPLES` is a batch of
the wire. An export is the same messages in one file, each behind its length (u32), after the magic `HPX1`.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from latency_contract.bundles import Bundle
from latency_contract.errors import BundleError, ContractError, WireError
from latency_contract.manifest import MANIFEST, from_json, to_json
from latency_contract.sample_wire import SampleBatch, decode_batch

#: Longest piece of a file.
PIECE: Final = 1 << 20
#: Bytes that are taken of one peer or export.
MAX_BYTES: Final = 256 << 20

_MAGIC: Final = b"HPX1"
_LENGTH: Final = struct.Struct("<I")


class Part(IntEnum):
    """Kind of a message."""

    VERSION = 1
    FILE = 2
    END = 3
    SAMPLES = 4


def messages(bundles: Iterable[Bundle], batches: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the messages of bundles, oldest first, and of encoded batches."""
    for bundle in bundles:
        manifest = bundle.manifest
        yield bytes((Part.VERSION,)) + manifest.version.encode("ascii")
        files = [(MANIFEST, to_json(manifest))]
        files += [(model.file, bundle.trees[target]) for target, model in manifest.models.items()]
        for name, content in files:
            for at in range(0, len(content), PIECE):
                head = bytes((Part.FILE, len(name))) + name.encode("ascii")
                yield head + content[at : at + PIECE]
        yield bytes((Part.END,))
    for batch in batches:
        yield bytes((Part.SAMPLES,)) + batch


@dataclass(slots=True)
class Receiver:
    """Takes messages in order. What is wrong is left out and said in `errors`; nothing of it is kept."""

    bundles: list[Bundle] = field(default_factory=list)
    batches: list[SampleBatch] = field(default_factory=list)
    encoded: list[bytes] = field(default_factory=list)
    """The same batches as on the wire."""
    errors: list[str] = field(default_factory=list)
    _version: str = ""
    _files: dict[str, bytearray] = field(default_factory=dict)
    _size: int = 0

    def take(self, message: bytes) -> None:
        """Take one message. Raises WireError when more than MAX_BYTES came, or for what is no message."""
        self._size += len(message)
        if self._size > MAX_BYTES:
            msg = f"more than {MAX_BYTES >> 20} MiB of bundles and samples"
            raise WireError(msg)
        kind, content = message[:1], message[1:]
        if kind == bytes((Part.VERSION,)):
            self._version, self._files = content.decode("ascii", "replace"), {}
        elif kind == bytes((Part.FILE,)) and content:
            size = content[0]
            name = content[1 : 1 + size].decode("ascii", "replace")
            if len(self._files) < 8 or name in self._files:
                self._files.setdefault(name, bytearray()).extend(content[1 + size :])
        elif kind == bytes((Part.END,)):
            self._end()
        elif kind == bytes((Part.SAMPLES,)):
            try:
                self.batches.append(decode_batch(content))
                self.encoded.append(content)
            except ContractError as error:
                self.errors.append(str(error))
        else:
            msg = f"a message of the kind {kind!r}"
            raise WireError(msg)

    def _end(self) -> None:
        files, self._files = self._files, {}
        try:
            manifest = from_json(bytes(files.get(MANIFEST, b"")))
            if manifest.version != self._version:
                msg = f"the manifest of {self._version[:60]!r} is that of {manifest.version}"
                raise BundleError(msg)
            trees = {target: bytes(files.get(model.file, b"")) for target, model in manifest.models.items()}
        except ContractError as error:
            self.errors.append(str(error))
            return
        self.bundles.append(Bundle(manifest, trees))


def pack(parts: Iterable[bytes]) -> bytes:
    """Return messages as an export."""
    return _MAGIC + b"".join(_LENGTH.pack(len(each)) + each for each in parts)


def unpack(content: bytes) -> Iterator[bytes]:
    """Yield the messages of an export. Raises WireError for what is none."""
    if content[:4] != _MAGIC:
        msg = f"this is no export of a trainer: it begins with {content[:4]!r}"
        raise WireError(msg)
    at = 4
    while at < len(content):
        if len(content) - at < _LENGTH.size:
            raise WireError("an export that ends within a message")
        (size,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size
        if len(content) - at < size:
            raise WireError("an export that ends within a message")
        yield content[at : at + size]
        at += size
