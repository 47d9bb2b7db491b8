"""KV-cache events: a mirror that follows them knows exactly what the prefix cache holds."""

import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server_sim import kv_events
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
