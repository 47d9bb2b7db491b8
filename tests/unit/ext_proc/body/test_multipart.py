"""Uploads: fields are found whatever the cuts, files count by their digest."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from body_reading import in_pieces, parse, refusal
from ext_proc.body.multipart import MAX_PARTS
from ext_proc.body.reading import InvalidBodyError

PATH = "/v1/audio/transcriptions"


def upload(audio: bytes, model: str = "whisper", boundary: bytes = b"xyz") -> bytes:
    fields = [(b'name="file"; filename="a.wav"', audio), (b'name="model"', model.encode())]
    fields += [(b'name="language"', b"de"), (b'name="stream"', b"true")]
    parts = [
        b"--" + boundary + b"\r\nContent-Disposition: form-data; " + head + b"\r\n\r\n" + value + b"\r\n"
        for head, value in fields
    ]
    return b"".join(parts) + b"--" + boundary + b"--\r\n"


AUDIO = bytes(range(256)) * 300 + b"\r\n--xy\r\n--xyz0\r\n\r\n"


@given(cuts=st.lists(st.integers(0, 80_000), max_size=6))
def test_any_split_gives_the_same(cuts: list[int]) -> None:
    body = upload(AUDIO.replace(b"--xyz0", b"--xzz"))
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    pieces = [body[a:b] for a, b in itertools.pairwise(edges)]
    parsed = in_pieces(PATH, pieces, boundary=b"xyz")
    assert parsed.model == "whisper"
    assert parsed.prompt == parse(PATH, body, boundary=b"xyz").prompt
    start, end = parsed.model_span or (0, 0)
    assert body[start:end] == b"whisper"


def test_two_recordings_share_no_prompt() -> None:
    one, other = (parse(PATH, upload(audio), boundary=b"xyz").prompt for audio in (b"a" * 9, b"b" * 9))
    assert one[:6] != b""
    assert one != other
    assert one.endswith(b"\x02de")


def test_an_upload_without_a_model_or_a_boundary_is_refused() -> None:
    with pytest.raises(InvalidBodyError, match="model not found"):
        parse(PATH, upload(b"a").replace(b'"model"', b'"other"'), boundary=b"xyz")
    assert "without a boundary" in refusal(PATH, upload(b"a"))
    with pytest.raises(InvalidBodyError, match="ends within a part"):
        parse(PATH, upload(b"a")[:-8], boundary=b"xyz")


def test_endless_parts_headers_and_content_are_bounded() -> None:
    part = b'--xyz\r\nContent-Disposition: form-data; name="x"\r\n\r\n\r\n'
    with pytest.raises(InvalidBodyError, match=f"more than {MAX_PARTS} parts"):
        in_pieces(PATH, [part] * (MAX_PARTS + 2), boundary=b"xyz")
    with pytest.raises(InvalidBodyError, match="headers do not end"):
        in_pieces(PATH, [b"--xyz\r\n", *[b"a" * 5000] * 3], boundary=b"xyz")
    with pytest.raises(InvalidBodyError, match="ends within a part"):
        in_pieces(PATH, [part[:-2], *[b"a" * 65_536] * 200], boundary=b"xyz")
