"""Reads a long answer of a tokenizer in steps, between which other requests are served. Pure.

An answer of a million tokens has 7 MB: read in one go it would keep the event loop for 50 ms and more.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from endpoint_picker.datalayer.prompt_reading import (
    MAX_TOKENS,
    Features,
    media_of,
    read_ids,
    tokens_of,
)
from endpoint_picker.request import Tokens
from ext_proc.body.brackets import runs
from ext_proc.body.scan import Scanner

#: Keys of the token ids, the first one that is not empty counts.
_IDS: Final = ("tokens", "token_ids", "prompt_token_ids")
#: Most bytes of what an answer tells of images.
_MAX_FEATURES: Final = 262_144

_read_features: Final = msgspec.json.Decoder(Features | None).decode


class AnswerReading:
    """The reading of one whole answer; `prompt_reading.answered_tokens` reads short ones at once."""

    __slots__ = ("_count", "_features", "_ids", "_runs", "_scanner", "done", "tokens")

    def __init__(self, pieces: list[bytes]) -> None:
        size = sum(map(len, pieces))
        limits = dict.fromkeys(_IDS, size)
        self._scanner = Scanner({**limits, "features": _MAX_FEATURES}, listed=True)
        for piece in pieces:
            self._scanner.feed(piece)
        self._scanner.end()
        self._runs: Iterator[bytes] | None = None
        self._ids: list[bytes] = []
        self._count = 0
        self._features: Features | None = None
        self.done = False
        self.tokens: Tokens | None = None
        """When `done`: the tokens; None when there are none, or too many."""

    def advance(self) -> None:
        """Do one step, of a millisecond or two. Raises ValueError when it is no such answer."""
        if self._runs is None:
            self._scanner.advance()
            if self._scanner.done:
                self._runs = self._scanned()
            return
        run = next(self._runs, None)
        if run is None:
            self.done = True
            if self._ids:
                self.tokens = Tokens(b"".join(self._ids), "server", media=media_of(self._features))
            return
        try:
            found = tokens_of(read_ids(b"[" + run + b"]"), "server")
        except (msgspec.DecodeError, RecursionError):
            found = None
        if found is None:
            raise ValueError("the answer's tokens are no token ids")
        self._ids.append(found.ids)
        self._count += len(found.ids) // 4
        if self._count > MAX_TOKENS:
            self._ids.clear()
            self._runs = iter(())

    def _scanned(self) -> Iterator[bytes]:
        """Return the runs of token ids. Raises ValueError when the answer has none."""
        scanner = self._scanner
        if scanner.error is not None:
            raise ValueError("no answer of a tokenizer")
        features = scanner.fields.get("features")
        if features is not None:
            try:
                self._features = _read_features(features.raw)
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                raise ValueError("no answer of a tokenizer") from error
        spans = [scanner.fields[key].raw for key in _IDS if key in scanner.fields]
        lists = [raw for raw in spans if raw != b"null"]
        if not all(raw.startswith(b"[") for raw in lists):
            raise ValueError("no answer of a tokenizer")
        if not lists:
            raise ValueError("the answer has no tokens")
        return next((runs(raw, True) for raw in lists if raw[1:-1].strip()), iter(()))
