"""Fuzz the readers of request bodies: `python tests/fuzz/ext_proc/fuzz_bodies.py --seconds 3600`.

Inputs are mutated from seeds and from each input that showed a behaviour not seen before. An input that fails
is written beside this file and named; the exit status is then 1.
"""

import argparse
import hashlib
import json
import random
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from body_fuzz import run

LONGEST = 4_000
KEPT = 3_000
TOKENS = (
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b" ", b"\\u0065", b"\\ud83d", b"null", b"true", b"1e400",
    b"-0", b"NaN", b'"model"', b'"messages"', b'"content"', b'"text"', b'"m"', b'"prompt"', b'"tools"',
    b"\xff", b"\xef\xbb\xbf", b"\r\n--b\r\n", b"--b--",
    b'Content-Disposition: form-data; name="model"\r\n\r\n',
    b"\0\0\0\0\x09", b"\x12\x04", b"A" * 700, b'"data:image/png;base64,' + b"A" * 600,
)  # fmt: skip


def seeds() -> list[bytes]:
    """Return inputs that are read, one for each form of body and encoding."""
    chat = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}
    body = json.dumps({**chat, "stream": True, "tools": [{"name": "f"}], "cache_salt": "s"}).encode()
    ids = b'{"model":"m","prompt":[1,2,3],"max_tokens":7}'
    part = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
    frame = b"\0\0\0\0\x08\x12\x06\x12\x04\x01\x7f\x80\x01"
    made = []
    for api in range(24):
        for encoding in range(6):
            for text in (body, ids, part, frame):
                made.append(bytes((api, api * 7 + encoding, encoding)) + text)
    return made


def mutated(rng: random.Random, given: bytes, other: bytes) -> bytes:
    """Return the input with some changes."""
    out = bytearray(given)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at = rng.randrange(len(out) + 1)
        how = rng.randrange(7)
        if how == 0:
            out[at:at] = rng.choice(TOKENS)
        elif how == 1:
            del out[at : at + rng.randrange(1, 20)]
        elif how == 2 and at < len(out):
            out[at] = rng.randrange(256)
        elif how == 3:
            out[at:at] = out[max(0, at - rng.randrange(1, 60)) : at]
        elif how == 4:
            cut = rng.randrange(len(other) + 1)
            out[at:] = other[cut:]
        elif how == 5:
            out[at:at] = rng.choice(TOKENS) * rng.randrange(1, 40)
        elif len(out) > 3:
            out[rng.randrange(3)] = rng.randrange(256)
    return bytes(out[:LONGEST])


def main() -> int:
    """Fuzz until the time is over; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    pool, known, count = seeds(), set(), 0
    until = time.monotonic() + given.seconds
    while time.monotonic() < until:
        candidate = mutated(rng, rng.choice(pool), rng.choice(pool)) if count >= len(pool) else pool[count]
        count += 1
        try:
            behaviour = run(candidate)
        except Exception:
            name = Path(__file__).parent / f"failed-{hashlib.sha256(candidate).hexdigest()[:12]}.bin"
            name.write_bytes(candidate)
            traceback.print_exc()
            print(f"failed: {name}", file=sys.stderr)
            return 1
        if behaviour not in known:
            known.add(behaviour)
            if len(pool) < KEPT:
                pool.append(candidate)
    print(f"{count} inputs, {len(known)} behaviours, no failure")
    return 0


if __name__ == "__main__":
    sys.exit(main())
