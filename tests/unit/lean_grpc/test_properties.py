"""Properties of the sans-IO layers: caches agree with plain coders, splits do not matter, no byte is lost."""

from itertools import chain, pairwise, repeat

import pytest
from hpack import Decoder, Encoder, HPACKError
from hypothesis import given, settings
from hypothesis import strategies as st

from http2_wire import REQUEST, Wire, message, setting, uint
from lean_grpc.calls import metadata as md
from lean_grpc.calls.messages import MessageReader, deflate
from lean_grpc.http2 import codes
from lean_grpc.http2.codes import PREFACE, frame
from lean_grpc.http2.errors import ProtocolError
from lean_grpc.http2.fields import Kind
from lean_grpc.http2.guard import HeldMessages
from lean_grpc.http2.header_blocks import HeaderDecoder, HeaderEncoder
from lean_grpc.limits import Limits

checked = settings(deadline=None, max_examples=60)

NAMES = st.sampled_from([b"x-a", b"x-b", b"content-type", b"grpc-status", b"user-agent"])
VALUES = st.sampled_from([b"", b"0", b"application/grpc", b"v" * 60, b"w" * 700])
FIELDS = st.lists(st.tuples(NAMES, VALUES, st.booleans()), max_size=5)
STEPS = st.lists(st.one_of(FIELDS, st.sampled_from([0, 64, 200, 4_096])), max_size=16)


@checked
@given(STEPS, st.data())
def test_cached_decoding_agrees_with_the_plain_decoder_while_tables_change(
    steps: list[object], data: st.DataObject
) -> None:
    encoder, plain, cached = Encoder(), Decoder(), HeaderDecoder(65_536, 65_536)
    blocks: list[bytes] = []
    for step in steps:
        if isinstance(step, int):
            if step != encoder.header_table_size:
                encoder.header_table_size = step
            continue
        assert isinstance(step, list)
        blocks.append(encoder.encode(step))
        # Decode old blocks again: after a change of the table the same bytes may mean other fields.
        for block in (blocks[-1], *data.draw(st.lists(st.sampled_from(blocks), max_size=3))):
            try:
                expected = tuple(tuple(field) for field in plain.decode(block, raw=True))
            except HPACKError:
                with pytest.raises(ProtocolError):
                    cached.decode(block, Kind.TRAILERS)
                return
            assert cached.decode(block, Kind.TRAILERS).fields == expected


@checked
@given(st.lists(st.binary(max_size=40), max_size=8))
def test_any_bytes_decode_as_the_plain_decoder_says_or_end_the_connection(blocks: list[bytes]) -> None:
    plain, cached = Decoder(), HeaderDecoder(65_536, 65_536)
    for block in blocks * 2:
        try:
            expected = tuple(tuple(field) for field in plain.decode(block, raw=True))
        except (HPACKError, IndexError, ValueError):
            expected = None
        try:
            assert cached.decode(block, Kind.REQUEST).fields == expected
        except ProtocolError:
            # HeaderDecoder also refuses blocks of too many size updates.
            return
        if expected is None:
            return


@checked
@given(st.lists(st.one_of(st.tuples(FIELDS, FIELDS), st.sampled_from([0, 64, 4_096, 10_000])), max_size=25))
def test_encoded_blocks_decode_to_the_same_fields(steps: list[object]) -> None:
    encoder, decoder = HeaderEncoder(), Decoder()
    for step in steps:
        if isinstance(step, int):
            encoder.resize(step)
            continue
        assert isinstance(step, tuple)
        steady, varying = (tuple((name, value) for name, value, _ in fields) for fields in step)
        for _ in range(2):
            decoded = decoder.decode(encoder.encode(steady, varying), raw=True)
            assert tuple(tuple(field) for field in decoded) == steady + varying


def _exchange() -> bytes:
    wire = Wire()
    block = wire.block(*REQUEST)
    return b"".join(
        (
            PREFACE,
            frame(codes.SETTINGS, 0, 0, setting(codes.INITIAL_WINDOW_SIZE, 200_000)),
            frame(codes.HEADERS, 0, 1, block[:5]),
            frame(codes.CONTINUATION, codes.END_HEADERS, 1, block[5:]),
            frame(codes.WINDOW_UPDATE, 0, 0, uint(10)),
            frame(codes.DATA, codes.PADDED, 1, b"\x02" + message(b"hello") + bytes(2)),
            frame(codes.PING, 0, 0, b"pingpong"),
            frame(0xFE, 0, 0, b"unknown"),
            wire.request(3, end=True),
            frame(codes.DATA, codes.END_STREAM, 1, message(b"x" * 300)),
            frame(codes.RST_STREAM, 0, 3, uint(8)),
            frame(codes.GOAWAY, 0, 0, bytes(8)),
        )
    )


EXCHANGE = _exchange()


@checked
@given(st.lists(st.integers(0, len(EXCHANGE)), max_size=20))
def test_any_split_gives_the_same_events_and_answers(cuts: list[int]) -> None:
    whole, split = Wire(greet=False), Wire(greet=False)
    whole.core.receive(EXCHANGE)
    places = sorted({0, *cuts, len(EXCHANGE)})
    for start, stop in pairwise(places):
        split.core.receive(EXCHANGE[start:stop])
    assert split.events == whole.events
    assert split.answers() == whole.answers()
    assert whole.core.fault is None


@checked
@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5), st.booleans())
def test_any_bytes_in_any_split_end_alike_and_never_raise(data: bytes, cuts: list[int], greet: bool) -> None:
    ends = []
    for places in ([0, len(data)], sorted({0, *(min(cut, len(data)) for cut in cuts), len(data)})):
        wire = Wire(greet=greet)
        for start, stop in pairwise(places):
            wire.core.receive(data[start:stop])
        ends.append((wire.events, wire.answers(), wire.core.fault and wire.core.fault.code))
    assert ends[0] == ends[1]


@checked
@given(
    st.lists(st.tuples(st.binary(max_size=400), st.booleans()), max_size=8),
    st.lists(st.integers(0, 3_000), max_size=10),
    st.lists(st.integers(0, 3), max_size=10),
)
def test_messages_survive_any_split(
    messages: list[tuple[bytes, bool]], cuts: list[int], wishes: list[int]
) -> None:
    """The caller of `next` may stop after any message, and go on after more has arrived."""
    stream = b"".join(
        message(deflate(payload), 1) if packed else message(payload) for payload, packed in messages
    )
    reader = MessageReader(1_000, HeldMessages(Limits()), b"gzip")
    places = sorted({0, *(min(cut, len(stream)) for cut in cuts), len(stream)})
    read: list[bytes] = []

    def take(most: int) -> None:
        for _ in range(most):
            payload = reader.next()
            if payload is None:
                break
            read.append(payload)
        reader.settle()

    for (start, stop), most in zip(pairwise(places), chain(wishes, repeat(9)), strict=False):
        reader.feed(stream, start, stop)
        take(most)
    take(9)
    assert read == [payload for payload, _ in messages]
    assert reader.empty


KEYS = st.from_regex(r"x-[0-9a-z_.\-]{1,10}", fullmatch=True).filter(lambda key: not key.endswith("-bin"))
TEXTS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=30)
PAIRS = st.one_of(
    st.tuples(KEYS, TEXTS), st.tuples(KEYS.map(lambda key: key + "-bin"), st.binary(max_size=30))
)


@checked
@given(st.lists(PAIRS, max_size=8))
def test_metadata_survives_the_wire(pairs: list[tuple[str, str | bytes]]) -> None:
    assert md.decode(md.encode(pairs)) == tuple(pairs)


@checked
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_status_messages_survive_the_wire(text: str) -> None:
    encoded = md.encode_message(text)
    assert md.decode_message(encoded) == text
    assert all(0x20 <= byte <= 0x7E for byte in encoded)


@checked
@given(st.binary(max_size=60))
def test_any_status_message_can_be_read(value: bytes) -> None:
    assert isinstance(md.decode_message(value), str)


@checked
@given(st.floats(0, 1e9))
def test_a_timeout_is_never_sent_longer_than_asked_for(seconds: float) -> None:
    read = md.decode_timeout(md.encode_timeout(seconds))
    assert read <= seconds * (1 + 1e-9)
    assert read >= seconds * 0.99 - 3_600 * (seconds > 9e7) - 1e-6


SENDS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60_000)), max_size=12)
WINDOWS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40_000)), max_size=12)


@checked
@given(SENDS, WINDOWS, st.integers(0, 70_000))
def test_no_window_is_ever_overrun_and_nothing_is_lost(
    sends: list[tuple[int, int]], updates: list[tuple[int, int]], initial: int
) -> None:
    wire = Wire(limits=Limits(stream_send_limit=10**9, output_high=50_000))
    wire.send(frame(codes.SETTINGS, 0, 0, setting(codes.INITIAL_WINDOW_SIZE, initial)))
    ids = (1, 3, 5)
    wire.send(*[wire.request(stream_id) for stream_id in ids])
    windows = {0: 65_535, **dict.fromkeys(ids, initial)}
    due: dict[int, bytes] = dict.fromkeys(ids, b"")
    got: dict[int, bytes] = dict.fromkeys(ids, b"")

    def collect() -> None:
        for answer in wire.answers():
            if answer.kind == codes.DATA:
                got[answer.stream_id] += answer.payload
                for at in (0, answer.stream_id):
                    windows[at] -= len(answer.payload)
                    assert windows[at] >= 0

    for stream_id in ids:
        wire.core.outbox.headers(wire.owner.streams[stream_id], ((b":status", b"200"),))
    steps: list[tuple[str, int, int]] = [("send", *step) for step in sends]
    steps += [("window", *step) for step in updates]
    steps.sort(key=lambda step: step[2] % 97)
    for what, where, size in steps:
        if what == "send":
            payload = bytes((size % 251,)) * size
            due[ids[where]] += payload
            wire.core.outbox.data(wire.owner.streams[ids[where]], [payload], size)
        else:
            stream_id = (0, *ids)[where]
            windows[stream_id] += size
            wire.core.receive(frame(codes.WINDOW_UPDATE, 0, stream_id, uint(size)))
        collect()
    for stream_id in (0, *ids):
        windows[stream_id] += 2_000_000
        wire.core.receive(frame(codes.WINDOW_UPDATE, 0, stream_id, uint(2_000_000)))
    collect()
    assert got == due
