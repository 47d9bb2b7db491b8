"""Reads a response body that comes compressed, and stays so for the client. Pure, bounded."""

from typing import Final

from ext_proc.body.encodings import BrokenEncodingError, Decoder
from ext_proc.body.response.readers import ResponseReader
from ext_proc.body.usage import Usage

#: Decoded bytes of one piece that are read. A piece that holds more ends the reading: it bounds the time.
MAX_DECODED: Final = 1024 * 1024


class EncodedReader:
    """Decodes the pieces for another reader."""

    __slots__ = ("_decoder", "_reader", "failed", "response_id", "tokens")

    def __init__(self, reader: ResponseReader, decoder: Decoder) -> None:
        self._reader = reader
        self._decoder: Decoder | None = decoder
        self.tokens = 0
        self.failed = False
        self.response_id = ""

    def feed(self, piece: bytes) -> bool:
        """Look at one piece; after one that is broken or too large, at none."""
        if self._decoder is None:
            return False
        token, decoded = False, 0
        try:
            for part in self._decoder.feed(piece):
                token |= self._reader.feed(part)
                decoded += len(part)
                if decoded > MAX_DECODED:
                    self._decoder = None
                    break
        except BrokenEncodingError:
            self._decoder = None
        return token

    def close(self) -> Usage | None:
        """Note the end of the body; return the usage."""
        reader = self._reader
        usage = reader.close()
        self.tokens, self.failed, self.response_id = reader.tokens, reader.failed, reader.response_id
        return usage
