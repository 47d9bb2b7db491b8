"""Runs one fuzz input through the readers of request bodies; raises where a promise is broken.

The first byte chooses the API, the second the cuts, the third the encoding; the rest is the body.
"""

import gzip
import random
import zlib

import brotli
import zstandard

from body_reading import to_the_end
from ext_proc.body.api import Form
from ext_proc.body.apis import APIS
from ext_proc.body.encodings import decoder
from ext_proc.body.material import MAX_MATERIAL_BYTES
from ext_proc.body.reading import InvalidBodyError, Reading, model_span, read

ENCODINGS = ("", "gzip", "deflate", "br", "zstd", "raw")
#: Most bytes that an encoded body may have when decoded.
LIMIT = 1 << 20


def encoded(name: str, body: bytes) -> bytes:
    """Return the body in the encoding; "raw" names a body that is fed to gzip as it is."""
    if name == "gzip":
        return gzip.compress(body, 1)
    if name == "deflate":
        return zlib.compress(body, 1)
    if name == "br":
        return bytes(brotli.compress(body, quality=1))
    return zstandard.compress(body, 1) if name == "zstd" else body


def outcome(reading: Reading) -> tuple[object, ...]:
    """Return what a reading says, or why it is refused."""
    try:
        parsed = to_the_end(reading)
    except InvalidBodyError as error:
        return ("refused", str(error), error.too_large)
    assert len(parsed.prompt) <= MAX_MATERIAL_BYTES
    parsed.model.encode()
    return *_said(parsed), parsed.model_span


def run(given: bytes) -> tuple[object, ...]:
    """Read the input in one piece and in several; return what tells behaviours apart."""
    head, body = given[:3].ljust(3, b"\0"), given[3:]
    api = APIS[head[0] % len(APIS)]
    name = ENCODINGS[head[2] % len(ENCODINGS)]
    sent = encoded(name, body)
    rng = random.Random(head[1])
    found = []
    for count in (0, 1 + head[1] % 9):
        kind = "gzip" if name == "raw" else name
        reading = Reading(api, decoder=decoder(kind) if kind else None, limit=LIMIT, boundary=b"b")
        cuts = sorted(rng.randrange(len(sent) + 1) for _ in range(count))
        for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
            reading.feed(sent[start:end])
            for _ in range(rng.randrange(4)):
                reading.advance()
        reading.end()
        found.append(outcome(reading))
    assert found[0] == found[1], "the cuts matter"
    if not name:
        try:
            once = read(api, body, boundary=b"b")
            whole = (outcome(once) if isinstance(once, Reading) else _said(once))[:6]
        except InvalidBodyError as error:
            whole = ("refused", str(error), error.too_large)
        assert whole == found[0][:6], "a small body is read otherwise than a large one"
        if api.form is Form.JSON:  # from 16 KiB on a body is read by another decoder
            padded = body + b" " * 16_384
            try:
                once = read(api, padded)
                long = (outcome(once) if isinstance(once, Reading) else _said(once))[:6]
            except InvalidBodyError:
                long = ("refused",)
            same = long == whole or long[0] == whole[0] == "refused"
            assert same, "a body is read otherwise by the decoder of larger ones"
        span = model_span([body])
        assert span is None or 0 <= span[0] < span[1] <= len(body)
    first = found[0]
    told = str(first[1])[:40] if first[0] == "refused" else f"{bool(first[0])} {len(str(first[1])) // 16}"
    return api.name, name, told


def _said(parsed: object) -> tuple[object, ...]:
    return tuple(getattr(parsed, name) for name in _SAID)


_SAID = ("model", "prompt", "ids_at", "stream", "max_tokens", "state")
