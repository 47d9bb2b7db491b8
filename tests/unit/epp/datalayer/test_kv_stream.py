"""What a source's blocks are after lost, repeated and reordered messages, restarts and replays."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endpoint_picker.datalayer import kv_stream
from endpoint_picker.datalayer.kv_events import TOKEN_BYTES
from endpoint_picker.datalayer.kv_index import KvIndex
from endpoint_picker.datalayer.kv_sources import KvEventsPlan, KvSource, KvSources
from endpoint_picker.datalayer.kv_stream import KvStream
from endpoint_picker.datalayer.table import Endpoint, EndpointTable
from kv_publisher_model import Publisher

TOPIC = b"kv@10.0.0.1:8000@m"


class Pool:
    """An index with one source."""

    def __init__(self, replay_port: int = 6557) -> None:
        self.table = EndpointTable()
        self.index = KvIndex()
        self.sources = KvSources(self.table, self.index)
        self.sources.use(KvEventsPlan(replay_port=replay_port))
        self.table.replace([Endpoint("p-rank-0", "default", "10.0.0.1", 8000)])
        (self.source,) = list(self.sources)
        self.now = 0.0

    def hear(self, message: tuple[int, bytes]) -> None:
        number, payload = message
        self.source.received(TOPIC, number.to_bytes(8, "big"), payload, self.now)


def replay_all(pool: Pool, publisher: Publisher) -> None:
    """Answer the replays that the stream wants, until it wants none."""
    stream = pool.source.stream
    for _ in range(20):
        if stream.replay_from is None:
            return
        first = stream.replay_from
        stream.replay_started(pool.now)
        for number, payload in publisher.replay(first):
            stream.replayed(number, payload, pool.now)
        stream.replay_ended(pool.now)
        pool.source.settle()
    pytest.fail("the stream never has enough")


def truth(pool: Pool, publisher: Publisher) -> set[int]:
    keys = set()
    for ids in publisher.chains():
        tokens = b"".join(each.to_bytes(TOKEN_BYTES, "little") for each in ids)
        keys.add(pool.index.keys(pool.index.root(""), tokens)[-1])
    return keys


def known(pool: Pool) -> set[int]:
    """Return what the index holds that can be found: keys whose chain is whole."""
    return pool.index.held(pool.source.blocks.slot)


OPERATIONS = st.lists(
    st.sampled_from(
        ["send", "send", "send", "lose", "repeat", "late", "restart", "clear", "reconnect", "old"]
    ),
    min_size=1,
    max_size=60,
)


@given(OPERATIONS, st.integers(0, 1 << 30), st.booleans())
@settings(max_examples=150, deadline=None)
def test_after_every_replay_the_index_is_the_publishers_truth(
    operations: list[str], seed: int, maps: bool
) -> None:
    rng = random.Random(seed)
    pool, publisher = Pool(), Publisher(rng, capacity=60, maps=maps)
    pool.source.stream.connected(0.0)
    replay_all(pool, publisher)
    late: list[tuple[int, bytes]] = []
    for operation in operations:
        pool.now += 0.1
        if operation == "restart":
            publisher.restart()
            late.clear()
            pool.source.stream.connected(pool.now)
        elif operation == "reconnect":
            pool.source.stream.connected(pool.now)
        elif operation == "repeat" and publisher.sent:
            number = rng.choice(list(publisher.sent))
            pool.hear((number, publisher.sent[number]))
        elif operation == "old" and publisher.sent:
            pool.hear(next(iter(publisher.sent.items())))
        else:
            message = publisher.clear() if operation == "clear" else publisher.step(rng.randrange(1, 12))
            if operation == "late":
                late.append(message)
            elif operation != "lose":
                pool.hear(message)
                for each in late:
                    pool.hear(each)
                late.clear()
        if rng.random() < 0.3:
            replay_all(pool, publisher)
    pool.hear(publisher.step(3))
    replay_all(pool, publisher)
    while pool.index.sweep(1000):
        pass
    assert pool.source.stream.complete
    assert truth(pool, publisher) <= known(pool)
    assert len(known(pool)) == len(publisher.blocks) == pool.index.entries
    assert all(bits == pool.source.blocks.slot.bit for _, bits in pool.index.tiers["gpu"].items())


def stream_of(*, replays: bool = True) -> tuple[KvStream, list[str]]:
    seen: list[str] = []
    stream = KvStream(
        lambda payload: seen.append(payload.decode()), lambda: seen.append("-"), replays=replays
    )
    return stream, seen


def test_a_repeated_message_is_dropped_and_a_new_one_under_an_old_number_is_a_restart() -> None:
    stream, seen = stream_of(replays=False)
    for number, text in [(0, b"a"), (1, b"b"), (1, b"b"), (0, b"a"), (2, b"c")]:
        stream.live(number, text, 0.0)
    assert (seen, stream.repeated, stream.restarts) == (["a", "b", "c"], 2, 0)
    stream.live(0, b"x", 0.0)
    assert (seen[3:], stream.restarts, stream.complete) == (["-", "x"], 1, True)


def test_without_replays_a_late_message_fills_its_gap_and_a_lost_one_costs_what_is_known() -> None:
    stream, seen = stream_of(replays=False)
    stream.live(0, b"a", 0.0)
    stream.live(2, b"c", 1.0)
    assert stream.tick(1.1) == pytest.approx(1.0 + kv_stream.REORDER_S)
    stream.live(1, b"b", 1.1)
    assert seen == ["a", "b", "c"]
    assert stream.tick(2.0) is None
    stream.live(5, b"f", 3.0)
    stream.tick(3.0 + kv_stream.REORDER_S)
    assert (seen[3:], stream.complete) == (["-", "f"], False)


def test_a_publisher_that_started_again_unseen_is_found_by_the_replay() -> None:
    # The new publisher has passed the number of the last known message: only the content differs.
    stream, seen = stream_of()
    for number in range(3):
        stream.live(number, b"old%d" % number, 0.0)
    stream.live(5, b"new5", 1.0)
    assert stream.replay_from == 2
    stream.replay_started(1.0)
    for number in range(2, 6):
        stream.replayed(number, b"new%d" % number, 1.0)
    stream.replay_ended(1.0)
    assert stream.replay_from == 0
    stream.replay_started(1.0)
    for number in range(6):
        stream.replayed(number, b"new%d" % number, 1.0)
    stream.replay_ended(1.0)
    assert seen[-6:] == [f"new{number}" for number in range(6)]
    assert stream.replay_from is None
    assert stream.complete


def test_a_replay_that_fails_three_times_is_given_up_and_asked_for_again_after_a_pause() -> None:
    stream, seen = stream_of()
    stream.live(0, b"a", 0.0)
    stream.live(3, b"d", 0.0)
    for _ in range(kv_stream.REPLAY_ATTEMPTS):
        assert stream.replay_from == 0
        stream.replay_started(0.0)
        stream.replay_failed(0.0)
    assert (stream.replay_from, seen, stream.complete) == (None, ["a", "-", "d"], False)
    stream.live(4, b"e", 1.0)
    assert seen[-1] == "e"
    assert stream.tick(1.0) == kv_stream.REPLAY_PAUSE_S
    stream.tick(kv_stream.REPLAY_PAUSE_S)
    assert stream.replay_from == 0
    stream.replay_started(31.0)
    for number, text in enumerate("abcde"):
        stream.replayed(number, text.encode(), 31.0)
    stream.replay_ended(31.0)
    assert (seen[-6:], stream.complete) == (["-", *"abcde"], True)


def test_what_is_kept_during_a_gap_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_stream, "MAX_KEPT", 10)
    stream, seen = stream_of()
    stream.live(0, b"0", 0.0)
    for number in range(2, 40):
        stream.live(number, b"%d" % number, 0.0)
    assert len(stream._kept) <= 10
    for _ in range(5):
        if stream.replay_from is None:
            break
        first = stream.replay_from
        stream.replay_started(0.0)
        for number in range(first, 40):
            stream.replayed(number, b"%d" % number, 0.0)
        stream.replay_ended(0.0)
    assert seen == [str(number) for number in range(40)]


def test_a_history_that_the_publisher_has_lost_is_not_complete() -> None:
    stream, seen = stream_of()
    stream.connected(0.0)
    stream.replay_started(0.0)
    stream.replayed(7, b"h", 0.0)
    stream.replay_ended(0.0)
    assert (seen, stream.complete, stream.replay_from) == (["h"], False, None)


def test_a_source_is_known_when_its_history_is_and_forgotten_with_its_server() -> None:
    pool, publisher = Pool(), Publisher(random.Random(1), capacity=50)
    rows = pool.table.ready_rows
    assert not pool.index.trusted(rows, 0.0).any()
    message = publisher.step(4)
    pool.source.stream.connected(0.0)
    replay_all(pool, publisher)
    assert pool.index.trusted(rows, 0.0).all()
    pool.hear(message)
    assert pool.index.entries == 4
    pool.table.replace([])
    while pool.index.sweep(100):
        pass
    assert (pool.index.entries, len(pool.index.tiers["gpu"]), len(pool.sources)) == (0, 0, 0)


def test_silence_after_a_computed_prompt_means_that_the_events_are_not_to_be_trusted() -> None:
    pool, publisher = Pool(), Publisher(random.Random(1), capacity=50)
    rows, row = pool.table.ready_rows, int(pool.table.ready_rows[0])
    pool.hear(publisher.step(1))
    pool.index.expect(row, 10.0)
    assert pool.index.trusted(rows, 14.9).all()
    assert not pool.index.trusted(rows, 15.1).any()
    pool.hear(publisher.step(1))
    assert pool.index.trusted(rows, 15.2).all()


def source_named(sources: KvSources, topic: bytes) -> KvSource | None:
    return sources.of_topic(topic, b"\x93\xcb" + bytes(8) + b"\x90\x00")


@pytest.mark.parametrize(
    ("topic", "server"),
    [
        (b"kv@10.0.0.1:8000@m", "10.0.0.1:8000"),
        (b"kv@10.0.0.2@m", "10.0.0.2:8000"),
        (b"kv@b@m", "10.0.0.2:8000"),
        (b"kv@c@m", None),
        (b"kv@10.0.0.1@m", None),  # two endpoints: which of them is not said
        (b"events", None),
        (b"kv@\xff@m", None),
    ],
)
def test_on_a_bound_socket_the_topic_says_whose_message_it_is(topic: bytes, server: str | None) -> None:
    table, index = EndpointTable(), KvIndex()
    sources = KvSources(table, index)
    sources.use(KvEventsPlan(discover=False, bind="tcp://*:5557"))
    table.replace(
        [
            Endpoint("a-rank-0", "default", "10.0.0.1", 8000),
            Endpoint("a-rank-1", "default", "10.0.0.1", 8001),
            Endpoint("b-rank-0", "default", "10.0.0.2", 8000),
        ]
    )
    source = source_named(sources, topic)
    assert (source and source.endpoint.hostport) == server
    assert sources.strangers == (server is None)
    assert len(sources) == (server is not None)
