"""KV-cache events: a mirror that follows them knows exactly what the prefix cache holds."""

import random
from itertools import pairwise

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server_sim import kv_events, kv_publisher
from model_server_sim.blocks import Change, Cleared, Removed, Stored
from model_server_sim.engine import Engine, Request
from model_server_sim.params import EngineParams

SMALL = EngineParams(
    block_size=4, num_gpu_blocks=12, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=40
)
ACTION = st.tuples(
    st.sampled_from(["submit", "submit", "look", "abort", "clear"]),
    st.integers(1, 24),
    st.integers(1, 14),
    st.integers(0, 3),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(ACTION, max_size=40))
def test_a_mirror_of_the_events_holds_what_the_cache_holds(
    actions: list[tuple[str, int, int, int]],
) -> None:
    engine, now = Engine(SMALL, random.Random(1).random), 0.0
    mirror: set[int] = set()
    engine.pool.journal = []
    every: set[int] = set()
    for index, (action, prompt, output, family) in enumerate(actions):
        engine.advance(now)
        if action == "submit":
            hashes = tuple(1000 * family + block for block in range((prompt + output) // 4))
            every.update(hashes)
            engine.submit(
                Request(
                    request_id=str(index), prompt_tokens=prompt, output_tokens=output, block_hashes=hashes
                ),
                now,
            )
        elif action == "abort":
            engine.abort(str(prompt))
        elif action == "clear":
            engine.pool.clear()
        now += 0.01 * family
        engine.advance(now)
        events = msgspec.msgpack.decode(kv_events.batch(engine.pool.journal, 1.5, 2, 4))[1]
        engine.pool.journal.clear()
        for kind, *rest in events:
            if kind == "BlockStored":
                assert not mirror & set(rest[0])
                mirror.update(rest[0])
            elif kind == "BlockRemoved":
                assert mirror >= set(rest[0])
                mirror.difference_update(rest[0])
            else:
                mirror.clear()
        assert mirror == {name for name in every if engine.pool.match((name,), 1)}


def test_the_payload_is_vllm_s() -> None:
    request = Request(
        request_id="a",
        prompt_tokens=12,
        output_tokens=1,
        block_hashes=(7, 8, 9),
        adapter="tuned",
        token_ids=tuple(range(12)),
    )
    changes: list[Change] = [Removed(3), Removed(4), Stored(request, 1, 2), Cleared()]
    assert msgspec.msgpack.decode(kv_events.batch(changes, 1.5, 2, 4)) == [
        1.5,
        [
            ["BlockRemoved", [3, 4], "GPU"],
            ["BlockStored", [8, 9], 7, [4, 5, 6, 7, 8, 9, 10, 11], 4, None, "GPU", "tuned"],
            ["AllBlocksCleared"],
        ],
        2,
    ]
    assert kv_events.sequence_number(258) == b"\0\0\0\0\0\0\x01\x02"


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 600)), max_size=12),
    st.sampled_from([1, 16, 128]),
)
@settings(deadline=None)  # the time of an example says nothing on a busy machine
def test_long_messages_are_cut_and_say_the_same(runs: list[tuple[int, int]], block_size: int) -> None:
    changes: list[Change] = []
    said: list[tuple[str, int]] = []
    for number, (blocks, removed) in enumerate(runs):
        top = 2**32 - 1
        hashes = tuple(2**63 + 1000 * number + block for block in range(blocks + 1))
        request = Request(
            request_id="a",
            prompt_tokens=1,
            output_tokens=1,
            block_hashes=hashes,
            adapter="🚲" * 256,
            token_ids=(top,) * (blocks + 1) * block_size,
        )
        changes.append(Stored(request, 1, blocks)) if blocks else changes.append(Cleared())
        changes += [Removed(2**63 + each) for each in range(removed)]
        said += [("BlockStored", name) for name in hashes[1:]] if blocks else [("AllBlocksCleared", 0)]
        said += [("BlockRemoved", 2**63 + each) for each in range(removed)]
    heard: list[tuple[str, int]] = []
    before = {name: parent for parent, name in pairwise(each[1] for each in said if each[0] == "BlockStored")}
    for portion in kv_publisher.portions(changes, block_size):
        payload = kv_events.batch(portion, 1.5, 2, block_size)
        assert len(payload) <= kv_publisher.MESSAGE_BYTES
        for kind, *rest in msgspec.msgpack.decode(payload)[1]:
            heard += [(kind, name) for name in rest[0]] if rest else [(kind, 0)]
            if kind == "BlockStored":
                assert len(rest[2]) == len(rest[0]) * block_size
                assert rest[1] == rest[0][0] - 1 or before[rest[0][0]] == rest[1]
    assert heard == said
