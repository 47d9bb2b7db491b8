"""What `kubectl logs` may ask for, and where the tail of a log begins."""

import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_cluster.node.logs import LIMIT_BYTES, LogQuery, bound_log, parse_query, seek_tail


def test_the_options_of_kubectl_logs_are_read() -> None:
    assert parse_query({}) == LogQuery(follow=False, tail_lines=None, limit_bytes=None)
    asked = {"follow": "true", "tailLines": "5", "limitBytes": "10", "previous": "false"}
    assert parse_query(asked) == LogQuery(follow=True, tail_lines=5, limit_bytes=10)


@pytest.mark.parametrize("query", [{"previous": "true"}, {"tailLines": "-1"}, {"sinceSeconds": "5"}])
def test_an_unsupported_option_is_named(query: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(query))):
        parse_query(query)


@given(
    st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b" ")), max_size=9),
    st.integers(0, 12),
)
def test_the_tail_is_the_last_lines(lines: list[bytes], count: int) -> None:
    for text in (b"".join(line + b"\n" for line in lines), b"\n".join(lines)):
        file = io.BytesIO(text)
        seek_tail(file, count)
        whole = io.BytesIO(text).readlines()
        assert file.read() == b"".join(whole[len(whole) - min(count, len(whole)) :])


def test_the_tail_of_a_log_of_many_blocks() -> None:
    text = b"".join(b"%070d\n" % number for number in range(5000))
    file = io.BytesIO(text)
    seek_tail(file, 3000)
    assert file.read() == text[-3000 * 71 :]


def test_only_the_end_of_a_log_far_over_the_limit_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "c.log"
    log.write_bytes(b"the beginning\n")
    os.truncate(log, 3 * LIMIT_BYTES)
    with log.open("ab") as more:
        more.write(b"the end\n")
    bound_log(log)
    kept = (tmp_path / "c.log.1").read_bytes()
    assert len(kept) == LIMIT_BYTES
    assert kept.endswith(b"\0the end\n")
    assert log.stat().st_size == 0
