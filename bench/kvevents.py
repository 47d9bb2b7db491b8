"""KV events of 20 servers, and of their blocks up to 2,000,000, with lost, repeated and late messages.

    python bench/kvevents.py                     20 servers of 10,000 blocks; one JSON line a figure
    python bench/kvevents.py --full              of 100,000 blocks
    python bench/kvevents.py --blocks 1000       of any other size

The picker's own decoder, streams and index take the messages; the publishers keep their last messages for
replays, as vLLM's do. After every replay a server's part of the index is compared with what its publisher
holds; at the end the whole index is. Times are CPU seconds of this process.
"""

import argparse
import gc
import json
import random
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from array import array

from endpoint_picker.datalayer.kv_index import KvIndex
from endpoint_picker.datalayer.kv_sources import KvEventsPlan, KvSource, KvSources
from endpoint_picker.datalayer.table import Endpoint, EndpointTable
from kv_publisher_model import Publisher

TOPIC: Final = b"kv@server@m"
#: Blocks that a message stores: a step's 1,024 new tokens.
STEP: Final = 64
#: Share of the messages that are lost, that come twice, and that come after the next one.
LOST, REPEATED, LATE = 0.01, 0.01, 0.01
#: Messages after which a replay that is wanted is answered.
ANSWERED_AFTER: Final = 3


def report(figure: str, value: float, unit: str, goal: float) -> None:
    """Print one figure."""
    line = {"figure": figure, "value": round(value, 3), "unit": unit, "goal": goal, "ok": value <= goal}
    print(json.dumps(line), flush=True)


def resident() -> int:
    """Return this process's resident memory, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Truth:
    """A publisher, and the index's key of each block that it holds."""

    def __init__(self, index: KvIndex, seed: int, capacity: int) -> None:
        self._index = index
        self.publisher = Publisher(random.Random(seed), capacity=capacity)
        self._keys: dict[int, int] = {}

    def step(self) -> tuple[int, bytes]:
        """Return the next message."""
        message = self.publisher.step(STEP)
        for name in reversed(list(islice(reversed(self.publisher.blocks), STEP))):
            parent, ids = self.publisher.blocks[name]
            root = self._index.root("") if parent is None else self._keys[parent]
            self._keys[name] = self._index.keys(root, array("I", ids).tobytes())[0]
        if len(self._keys) > 2 * len(self.publisher.blocks):
            self._keys = {name: self._keys[name] for name in self.publisher.blocks}
        return message

    def restart(self) -> None:
        """Start the publisher again."""
        self.publisher.restart()
        self._keys.clear()

    def held(self) -> set[int]:
        """Return the keys of all blocks."""
        return {self._keys[name] for name in self.publisher.blocks}


class Pool:
    """An index that follows `servers` publishers."""

    def __init__(self, servers: int, most_blocks: int) -> None:
        self.table, self.index = EndpointTable(), KvIndex()
        self.sources = KvSources(self.table, self.index)
        self.sources.use(KvEventsPlan(replay_port=6557, most_blocks=most_blocks))
        self.table.replace(
            Endpoint(f"p{n}-rank-0", "d", f"10.0.{n // 250}.{n % 250}", 8000) for n in range(servers)
        )
        self.all = list(self.sources)
        self.cpu = 0.0
        self.longest = 0.0

    def hear(self, source: KvSource, number: int, payload: bytes) -> None:
        """Pass a message on, and count its CPU."""
        begun = time.process_time()
        source.received(TOPIC, number.to_bytes(8, "big"), payload, 0.0)
        took = time.process_time() - begun
        self.cpu += took
        self.longest = max(self.longest, took)

    def replay(self, source: KvSource, truth: Truth) -> int:
        """Answer the replays that the source wants; return how many."""
        stream, count = source.stream, 0
        while stream.replay_from is not None:
            first = stream.replay_from
            stream.replay_started(0.0)
            for number, payload in truth.publisher.replay(first):
                stream.replayed(number, payload, 0.0)
            stream.replay_ended(0.0)
            count += 1
            assert count < 20, "the stream never has enough"
        source.settle()
        return count


def told(source: KvSource) -> set[int]:
    """Return the keys that a source's blocks carry."""
    blocks = source.blocks._blocks.get("gpu")
    return {key for _, key in blocks.items() if isinstance(key, int)} if blocks else set()


def with_faults(servers: int, blocks: int) -> None:
    """Fill all servers while messages go wrong, and compare after every replay."""
    pool = Pool(servers, blocks * 2)
    rng = random.Random(7)
    steps = blocks // STEP + 1
    replays = wrong = restarts = faults = 0
    truths = []
    payloads = 0
    for at, source in enumerate(pool.all):
        truth = Truth(pool.index, at, blocks)
        truths.append(truth)
        late: list[tuple[int, bytes]] = []
        since = 0
        for step in range(2 * steps):
            if step == steps // 2 and at % 4 == 0:
                truth.restart()
                late.clear()
                source.stream.connected(0.0)
                restarts += 1
            number, payload = truth.step()
            fate = rng.random()
            if fate < LOST:
                faults += 1
            elif fate < LOST + LATE:
                late.append((number, payload))
                faults += 1
            else:
                pool.hear(source, number, payload)
                for each in late:
                    pool.hear(source, *each)
                late.clear()
                if fate > 1 - REPEATED:
                    pool.hear(source, number, payload)
                    faults += 1
            if source.stream.replay_from is not None:
                since += 1
                if since >= ANSWERED_AFTER:
                    since = 0
                    replays += pool.replay(source, truth)
                    # A message may still be on its way: it is not in the index, nor answered.
                    wrong += not late and told(source) != truth.held()
        source.stream.connected(0.0)
        replays += pool.replay(source, truth)
        wrong += told(source) != truth.held()
        payloads += sum(map(len, truth.publisher.sent.values()))
        truth.publisher.sent.clear()
    while pool.index.sweep(1 << 20):
        pass
    for source, truth in zip(pool.all, truths, strict=True):
        wrong += pool.index.held(source.blocks.slot) != truth.held()
    print(
        f"{servers} servers, {pool.index.entries} blocks, {faults} faults, {restarts} restarts, "
        f"{replays} replays, longest message {pool.longest * 1000:.2f} ms",
        file=sys.stderr,
    )
    report("kv_index_wrong_after_replay", wrong, "servers and replays", 0)
    report("kv_blocks_missing", servers * blocks - pool.index.entries, "blocks", servers * 2 * STEP)
    report("kv_message_longest", pool.longest * 1000, "ms", 10)


def memory(servers: int, blocks: int) -> None:
    """Measure what blocks take of which no server holds another's; nothing else is kept."""
    gc.collect()
    before = resident()
    pool, rng = Pool(servers, 1 << 30), random.Random(5)
    for source in pool.all:
        parent = None
        for number in range(blocks // STEP):
            names = [rng.getrandbits(64) for _ in range(STEP)]
            ids = [rng.randrange(150_000) for _ in range(STEP * 16)]
            stored = ["BlockStored", names, parent, ids, 16, None, "GPU", None]
            parent = names[-1] if number % 8 != 7 else None
            pool.hear(source, number, msgspec.msgpack.encode([1.0 + number, [stored], 0]))
    gc.collect()
    size = resident() - before
    report("kv_memory_mb", size / 1e6, "MB", servers * blocks * 200 / 1e6)
    report("kv_memory", size / pool.index.entries, "bytes a block", 200)


def clean(servers: int, blocks: int) -> None:
    """Measure events, a clear and lookups without faults."""
    for events_blocks in (1, 8, 64):
        pool = Pool(1, 1 << 30)
        publisher = Publisher(random.Random(1), capacity=blocks)
        messages = [publisher.step(events_blocks) for _ in range(max(1000, 2 * blocks // 64))]
        for number, payload in messages:
            pool.hear(pool.all[0], number, payload)
        events = pool.sources.events
        report(
            f"kv_cpu_events_of_{events_blocks}",
            pool.cpu / events * 1e6,
            "ms a thousand",
            20 + 5 * events_blocks,
        )
    begun = time.process_time()
    pool.all[0].blocks.clear()
    report("kv_clear", (time.process_time() - begun) * 1000, "ms", 10)
    begun, slices = time.process_time(), 0
    while pool.index.sweep(2000):
        slices += 1
    report("kv_sweep_of_2000", (time.process_time() - begun) * 1000 / max(1, slices), "ms", 10)
    lookups = {many: lookup(many) for many in (servers, 10 * servers)}
    report("kv_lookup_512_blocks", lookups[servers] * 1e6, "us", 1000)
    report("kv_lookup_servers_times_10", lookups[10 * servers] / lookups[servers], "ratio", 2)


def lookup(servers: int) -> float:
    """Return the seconds of a lookup of 512 blocks that all servers hold in part."""
    pool = Pool(servers, 1 << 30)
    rng = random.Random(3)
    ids = [rng.randrange(150_000) for _ in range(512 * 16)]
    for at, source in enumerate(pool.all):
        blocks = 512 - at % 8
        stored = ["BlockStored", list(range(blocks)), None, ids[: blocks * 16], 16, None, "GPU", None]
        source.received(TOPIC, bytes(8), msgspec.msgpack.encode([1.0, [stored], 0]), 0.0)
    rows, tokens = np.arange(servers), array("I", ids).tobytes()
    chain = pool.index.keys(pool.index.root(""), tokens)
    best = float("inf")
    for _ in range(7):
        begun = time.process_time()
        for _ in range(50):
            pool.index.match(chain, rows, 0.0)
        best = min(best, (time.process_time() - begun) / 50)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--servers", type=int, default=20)
    parser.add_argument("--blocks", type=int, default=10_000, help="of each server (default 10,000)")
    parser.add_argument("--full", action="store_true", help="the same as --blocks 100000")
    chosen = parser.parse_args()
    blocks = 100_000 if chosen.full else chosen.blocks
    for part in (memory, clean, with_faults):
        begun = time.monotonic()
        part(chosen.servers, blocks)
        print(f"{part.__name__}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
