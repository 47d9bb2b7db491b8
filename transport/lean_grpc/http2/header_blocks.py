"""Header blocks with the `hpack` package behind caches (one decoder and one encoder a connection).

The meaning of a block depends on the dynamic table. A cache therefore lives only as long as one version of
that table: blocks that insert or resize are never cached and empty the cache. Peers repeat the same blocks: a
hit costs a dict look-up, decoding eight indexed bytes 24 us or more.
"""

from hpack import Decoder, Encoder, HPACKError, OversizedHeaderListError
from hpack.table import HeaderTable
from typing_extensions import override

from lean_grpc.http2.codes import ErrorCode
from lean_grpc.http2.errors import ProtocolError
from lean_grpc.http2.fields import Field, Head, Kind
from lean_grpc.http2.settings import HEADER_TABLE_DEFAULT

CACHED_BLOCKS = 64
"""Blocks that a cache holds; the next one empties it first."""
CACHED_BLOCK_SIZE = 1_024
"""Bytes of an encoded block above which it is not cached."""
TABLE_UPDATES = 16
"""Size updates that a block may begin with. RFC 7541, 4.2, asks for two at most; some peers send all."""


class VersionedTable(HeaderTable):
    """A dynamic table that counts its insertions. The block itself shows a change of the table's size."""

    def __init__(self) -> None:
        self.version = 0
        super().__init__()

    @override
    def add(self, name: bytes, value: bytes) -> None:
        """Insert an entry; evicts the oldest entries to make room."""
        self.version += 1
        super().add(name, value)


class HeaderDecoder:
    """Decodes and validates the peer's header blocks."""

    __slots__ = ("_cached", "_decoder", "_limit", "_seen", "_table")

    def __init__(self, limit: int, hard_limit: int) -> None:
        self._decoder = Decoder(max_header_list_size=hard_limit)
        self._table = VersionedTable()
        self._decoder.header_table = self._table
        self._limit = limit
        self._seen = 0
        self._cached: dict[tuple[Kind, bytes], Head] = {}

    def decode(self, block: bytes, kind: Kind) -> Head:
        """Return the list in `block`. A malformed or oversized one is returned marked: the table is in step.

        Raises:
            ProtocolError: COMPRESSION_ERROR if the block cannot be decoded, ENHANCE_YOUR_CALM if it grows
                beyond the hard limit. After either the table is out of step with the peer's.
        """
        key = (kind, block)
        head = self._cached.get(key)
        if head is not None:
            return head
        resizes = b"\x20" <= block[:1] < b"\x40"
        if resizes:
            _check_updates(block)
        table = self._table
        try:
            fields = tuple((name, value) for name, value in self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as error:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "header list beyond the hard limit") from error
        except (HPACKError, IndexError, ValueError) as error:
            raise ProtocolError(ErrorCode.COMPRESSION_ERROR, "header block cannot be decoded") from error
        head = Head(fields, kind, self._limit)
        if resizes or table.version != self._seen:
            self._seen = table.version
            self._cached.clear()
        elif len(block) <= CACHED_BLOCK_SIZE and not head.oversized:
            if len(self._cached) >= CACHED_BLOCKS:
                self._cached.clear()
            self._cached[key] = head
        return head


def _check_updates(block: bytes) -> None:
    """Refuse a block that begins with many size updates: each byte of them costs a table operation."""
    updates = at = 0
    while at < len(block) and block[at] & 0xE0 == 0x20:
        updates += 1
        if updates > TABLE_UPDATES:
            raise ProtocolError(ErrorCode.COMPRESSION_ERROR, "too many table size updates in one block")
        long = block[at] & 0x1F == 0x1F
        at += 1
        while long and at < len(block):
            long = block[at] >= 0x80
            at += 1


class HeaderEncoder:
    """Encodes our header lists. Fields that vary are sent as literals that do not enter the table."""

    __slots__ = ("_cached", "_encoder", "_final", "_smallest", "_table")

    def __init__(self) -> None:
        self._final = self._smallest = HEADER_TABLE_DEFAULT
        self._encoder = Encoder()
        self._table = VersionedTable()
        self._encoder.header_table = self._table
        self._cached: dict[tuple[Field, ...], bytes] = {}

    def resize(self, size: int) -> None:
        """Follow the peer's SETTINGS_HEADER_TABLE_SIZE; we never use more than the default."""
        self._final = min(size, HEADER_TABLE_DEFAULT)
        self._smallest = min(self._smallest, self._final)
        self._cached.clear()

    def encode(self, steady: tuple[Field, ...], varying: tuple[Field, ...] = ()) -> bytes:
        """Return a block of both lists; `steady` fields enter the dynamic table and the cache."""
        block = self._cached.get(steady)
        if block is None:
            block = self._encode_steady(steady)
        if varying:
            block += b"".join(literal(name, value) for name, value in varying)
        return block

    def _encode_steady(self, steady: tuple[Field, ...]) -> bytes:
        version = self._table.version
        self._apply_resize()
        # The first block after a resize carries the size update; a cached copy would send it again.
        resized = self._table.resized
        block = self._encoder.encode(steady)
        if self._table.version != version:
            self._cached.clear()
        elif not resized and len(block) <= CACHED_BLOCK_SIZE:
            if len(self._cached) >= CACHED_BLOCKS:
                self._cached.clear()
            self._cached[steady] = block
        return block

    def _apply_resize(self) -> None:
        """Change the table as RFC 7541, 4.2, asks: to the smallest size that was named since the last block,
        then to the final one. A size between them may exceed what the peer still allows.
        """
        encoder = self._encoder
        for size in (self._smallest, self._final):
            # hpack forgets to signal a pending change when the same size is set twice.
            if size != encoder.header_table_size:
                encoder.header_table_size = size
        self._smallest = self._final


def literal(name: bytes, value: bytes) -> bytes:
    """Return a field as a literal without indexing (RFC 7541, 6.2.2), not Huffman coded."""
    return b"\x00" + _length(len(name)) + name + _length(len(value)) + value


def _length(size: int) -> bytes:
    """Return a string length with a 7-bit prefix (RFC 7541, 5.1)."""
    if size < 0x7F:
        return bytes((size,))
    out = bytearray((0x7F,))
    size -= 0x7F
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)
