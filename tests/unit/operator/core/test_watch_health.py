from inference_operator.core.watch_health import DOWN_AFTER, OVERDUE_AFTER, UNTENDED_AFTER, StreamHealth


def opened(at: float) -> tuple[StreamHealth, list[bool]]:
    """Return a stream that was opened then, and the flag that says whether it still is."""
    stream, flag = StreamHealth(at), [True]
    stream.asked(at)
    stream.answered(at)
    stream.opened(at, lambda: flag[0])
    return stream, flag


def test_an_open_stream_is_not_down_and_not_neglected() -> None:
    stream, _ = opened(100.0)
    assert stream.down_for(200.0) == 0.0
    assert stream.neglect(200.0) == ""


def test_a_stream_that_ended_is_down_since_it_was_last_seen_open() -> None:
    stream, flag = opened(100.0)
    stream.look(150.0)
    flag[0] = False
    assert stream.down_for(153.0) == 3.0


def test_a_stream_that_nobody_asks_for_again_is_neglected() -> None:
    stream, flag = opened(100.0)
    flag[0] = False
    stream.look(101.0)
    assert stream.neglect(100.0 + UNTENDED_AFTER - 1) == ""
    assert stream.neglect(101.0 + UNTENDED_AFTER + 1)


def test_tries_that_fail_are_no_neglect() -> None:
    stream = StreamHealth(0.0)
    for now in range(0, 300, 5):
        stream.asked(float(now))
        stream.answered(now + 1.0, "HTTP status 503")
        assert stream.neglect(now + 4.0) == ""
    assert stream.problem == "HTTP status 503"


def test_a_server_that_asks_for_patience_is_given_it() -> None:
    stream = StreamHealth(0.0)
    stream.asked(0.0)
    stream.answered(0.0, "HTTP status 429", retry_after=60.0)
    assert stream.neglect(59.0) == ""
    assert stream.neglect(61.0 + UNTENDED_AFTER)
    stream.asked(80.0)
    stream.answered(80.0, "HTTP status 429", retry_after=1e6)
    assert stream.neglect(1000.0), "but not for ever"


def test_a_request_that_never_returns_is_neglect() -> None:
    stream = StreamHealth(0.0)
    stream.asked(0.0)
    assert stream.neglect(30.0) == ""
    assert stream.neglect(500.0)


def test_a_stream_that_outlives_the_servers_time_out_has_no_reader() -> None:
    stream, _ = opened(0.0)
    assert stream.neglect(OVERDUE_AFTER - 1) == ""
    assert stream.neglect(OVERDUE_AFTER + 1)


def test_a_stream_that_was_never_asked_for_is_neglected_and_says_so() -> None:
    stream = StreamHealth(0.0)
    assert stream.neglect(UNTENDED_AFTER + 1)
    assert stream.problem == "not asked yet"


def test_a_stream_that_was_never_open_does_not_pass_for_a_reconnection() -> None:
    assert StreamHealth(100.0).down_for(100.1) > DOWN_AFTER
