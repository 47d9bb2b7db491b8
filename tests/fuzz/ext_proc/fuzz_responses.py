"""Fuzz what reads responses for a given time: `python tests/fuzz/ext_proc/fuzz_responses.py --seconds 3600`.

Each input is read whole, event by event, cut at random and byte by byte; all ways must agree. Inputs are
mutated from the seeds and from each input that showed something not seen before. An input that fails is
written to `corpus`, which `test_corpus.py` replays in every test run; the exit status is then 1.
"""

import argparse
import hashlib
import random
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from response_fuzz import run

CORPUS = Path(__file__).parent / "corpus"
LONGEST = 3_000
TOKENS = [
    b"data: ", b"data:", b"\n", b"\n\n", b"\r\n", b"\r", b"{", b"}", b"[", b"]", b'"', b"\\", b":", b",",
    b" ", b'\\"', b"\\u0041", b"null", b"true", b"0", b"1.5e3", b"9007199254740993", b"[DONE]",
    b": ping\n\n", b"event: error\n",
    b'"usage":', b'"usage":null', b'"usage": {"prompt_tokens": 7}', b'"choices":[',
    b'{"delta":{"content":"x"}}', b'"delta":', b'"content":""', b'"content":"a"', b'"text":"b"', b'"type":',
    b'"response.created"', b'"content_block_delta"', b'"error":', b'"response":{"id":"r1"', b'"message":{',
    b'"model":', b'"sent/model"', b'"model":"sent/model"', b'"sent\\/model"',
    b'"meta_info":{"cached_tokens":3}',
    b"\xef\xbb\xbf", b"\xff", b"\x00",
]  # fmt: skip
SEEDS = [
    b"\x01\x00"
    b'data: {"id":"1","model":"sent/model","choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    + b'data: {"id":"1","model":"sent/model","choices":[{"delta":{"content":"a"}}],"usage":null}\n\n' * 4
    + b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\ndata: [DONE]\n\n',
    b"\x01\x01"
    b'event: message_start\ndata: {"type":"message_start","message":{"model":"sent/model","usage":{}}}\n\n'
    + b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"a"}}\n\n'
    * 3,
    b"\x01\x02"
    b'event: response.created\r\ndata: {"type":"response.created","response":{"id":"r","usage":null}}\r\n\r\n'
    + b'data: {"type":"response.output_text.delta","delta":"a"}\r\n\r\n'
    * 3,
    b'\x00\x03{"id":"r","object":"response","model":"sent/model","usage":{"input_tokens":3}}',
    b'\x00\x04{"choices":[{"text":"x"}],"error":null,"usage":{"prompt_tokens_details":{"cached_tokens":1}}}',
]


def mutate(rng: random.Random, data: bytes, pool: list[bytes]) -> bytes:
    """Return `data` changed in one to five places."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 5)):
        at, what = rng.randrange(len(out) + 1), rng.randrange(8)
        if what <= 2:
            out[at:at] = rng.choice(TOKENS)
        elif what == 3 and at < len(out):
            out[at] = rng.randrange(256)
        elif what == 4:
            del out[at : at + rng.randrange(20)]
        elif what == 5:
            out[at:at] = out[max(0, at - rng.randrange(120)) : at] * rng.randint(1, 3)
        elif what == 6:
            out[at : at + rng.randrange(6)] = rng.choice(TOKENS)
        else:
            out += rng.choice(pool)[2:]
    return bytes(out[:LONGEST])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, help="of the random numbers; a random one, printed, if not given")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    pool = SEEDS + [path.read_bytes() for path in sorted(CORPUS.glob("*.bin"))]
    seen = {run(data) for data in pool}
    started, runs = time.monotonic(), 0
    while time.monotonic() - started < options.seconds:
        data = mutate(rng, rng.choice(pool), pool)
        runs += 1
        try:
            shown = run(data)
        except Exception:
            path = CORPUS / f"failed-{hashlib.sha256(data).hexdigest()[:12]}.bin"
            CORPUS.mkdir(exist_ok=True)
            path.write_bytes(data)
            traceback.print_exc()
            print(f"seed {seed}: failed after {runs} runs; the input is in {path}")
            return 1
        if shown not in seen:
            seen.add(shown)
            pool.append(data)
    print(f"seed {seed}: no failure in {runs} runs, {len(seen)} behaviours")
    return 0


if __name__ == "__main__":
    sys.exit(main())
