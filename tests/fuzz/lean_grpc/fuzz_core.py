"""Fuzz lean_grpc's core for a given time: `python tests/fuzz/lean_grpc/fuzz_core.py --seconds 3600`.

Inputs are mutated from the corpus and from each input that showed a behaviour not seen before. An input that
fails is written beside the corpus and named; the exit status is then 1. `--save` adds new behaviours to the
corpus, which `test_corpus.py` replays in every test run.
"""

import argparse
import hashlib
import random
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from hpack import Encoder

from http2_wire import REQUEST, message, setting, uint
from lean_fuzz import run
from lean_grpc.http2 import codes
from lean_grpc.http2.codes import PREFACE, frame

CORPUS = Path(__file__).parent / "corpus"
LONGEST = 4_000


def seeds() -> list[bytes]:
    """Return inputs whose first frames are valid."""
    block = Encoder().encode(REQUEST)
    call = frame(codes.HEADERS, codes.END_HEADERS, 1, block)
    ok = Encoder().encode(((b":status", b"200"), (b"content-type", b"application/grpc")))
    end = Encoder().encode(((b"grpc-status", b"0"),))
    answer = frame(codes.HEADERS, codes.END_HEADERS, 1, ok) + frame(codes.DATA, 0, 1, message(b"x"))
    answer += frame(codes.HEADERS, codes.END_HEADERS | codes.END_STREAM, 1, end)
    window = frame(codes.WINDOW_UPDATE, 0, 1, uint(9))
    greeting = PREFACE + frame(codes.SETTINGS, 0, 0)
    chat = call + b"".join(frame(codes.DATA, 0, 1, message(bytes((mood,)) * 9)) for mood in range(7))
    return [
        b"\x01\x00" + greeting + call,
        b"\x03\x05" + chat + frame(codes.DATA, codes.END_STREAM, 1, message(b"")),
        b"\x03\x02" + frame(codes.SETTINGS, 0, 0, setting(4, 0)) + chat + window,
        b"\x02\x03" + answer,
        b"\x00\x01" + frame(codes.SETTINGS, 0, 0) + answer,
    ]


def random_frame(rng: random.Random) -> bytes:
    """Return a frame with a valid frame header; its payload may be invalid."""
    kind = rng.choice((0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 200))
    stream_id = rng.choice((0, 1, 1, 1, 3, 5, 7, 2, 2**31 - 1))
    flags = rng.choice((0, 1, 4, 5, 8, 0x20, 0x2D, rng.randrange(256)))
    payload = rng.choice(
        (
            b"",
            message(bytes((rng.randrange(8),)) * rng.randrange(1, 300)),
            uint(rng.choice((0, 1, 100, 65_535, 2**31 - 1, rng.randrange(2**32)))),
            setting(rng.randrange(8), rng.choice((0, 1, 100, 16_384, 65_535, 2**31 - 1, 2**31))),
            Encoder().encode(REQUEST),
            Encoder().encode(((b"x-a", b"1"), (b"content-length", b"5"))),
            bytes(8),
            rng.randbytes(rng.randrange(40)),
        )
    )
    return frame(kind, flags, stream_id, payload)


def mutate(rng: random.Random, data: bytes, pool: list[bytes]) -> bytes:
    """Return `data` changed in one to six places."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(out) + 1)
        what = rng.randrange(8)
        if what <= 2:
            out[at:at] = random_frame(rng)
        elif what == 3:
            out += random_frame(rng)
        elif what == 4 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif what == 5:
            del out[at : at + rng.randrange(30)]
        elif what == 6:
            out[at:at] = out[max(0, at - rng.randrange(60)) : at] * rng.randint(1, 4)
        else:
            other = rng.choice(pool)
            out += other[2 + rng.randrange(max(1, len(other) - 2)) :]
    return bytes(out[:LONGEST])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--seed",
        type=int,
        default=None,
        help="seed of the random numbers; a random one, printed, if not given",
    )
    parser.add_argument("--save", action="store_true", help="keep inputs with new behaviour in the corpus")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    pool = seeds() + [path.read_bytes() for path in sorted(CORPUS.glob("*.bin"))]
    seen = {run(data) for data in pool}
    ends = {signature[:2] for signature in seen}
    print(f"seed {seed}, {len(pool)} inputs, {len(seen)} behaviours", flush=True)
    started = said = time.monotonic()
    runs = slowest = 0.0
    while (now := time.monotonic()) - started < options.seconds:
        data = mutate(rng, rng.choice(pool), pool)
        runs += 1
        try:
            signature = run(data)
        except Exception:
            path = CORPUS.parent / f"failed-{hashlib.sha256(data).hexdigest()[:12]}.bin"
            path.write_bytes(data)
            traceback.print_exc()
            print(f"failed after {runs:.0f} runs; the input is in {path}")
            return 1
        slowest = max(slowest, time.monotonic() - now)
        if signature not in seen:
            seen.add(signature)
            pool.append(data)
            # Keep one input for each role and end in the repository: more would only slow the replay.
            if options.save and signature[:2] not in ends:
                ends.add(signature[:2])
                (CORPUS / f"{hashlib.sha256(data).hexdigest()[:12]}.bin").write_bytes(data)
        if now - said > 60:
            said = now
            print(f"{now - started:.0f} s, {runs:.0f} runs, {len(seen)} behaviours", flush=True)
    print(f"no failure in {runs:.0f} runs, {len(seen)} behaviours, slowest {slowest:.3f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
