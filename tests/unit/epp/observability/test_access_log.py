"""The access log's writer: a reader that pauses holds up no request."""

import json
import threading

from endpoint_picker.observability.access_log import MAX_LINES, LineWriter

WAIT_S = 60.0


class Pipe:
    """A reader that pauses until `reads` is set."""

    def __init__(self) -> None:
        self.text = ""
        self.begun, self.reads, self.grown = threading.Event(), threading.Event(), threading.Condition()

    def write(self, text: str) -> None:
        self.begun.set()
        assert self.reads.wait(WAIT_S)
        with self.grown:
            self.text += text
            self.grown.notify()

    def read_to(self, end: str) -> list[str]:
        """Return the lines once the text ends like this."""
        self.reads.set()
        with self.grown:
            assert self.grown.wait_for(lambda: self.text.endswith(end), WAIT_S)
            return self.text.splitlines()


def test_a_reader_that_pauses_holds_up_nothing_and_dropped_lines_are_counted() -> None:
    pipe = Pipe()
    writer = LineWriter(pipe.write)
    writer.write("first\n")
    assert pipe.begun.wait(WAIT_S)
    for number in range(MAX_LINES + 3):
        writer.write(f"{number}\n")
    assert pipe.read_to(f"\n{MAX_LINES - 1}\n") == ["first", *map(str, range(MAX_LINES))]
    writer.write("next\n")
    counted, following = pipe.read_to("next\n")[-2:]
    assert (json.loads(counted), following) == ({"droppedLines": 3}, "next")


def test_what_waits_at_the_end_is_written() -> None:
    pipe = Pipe()
    writer = LineWriter(pipe.write)
    writer.write("first\n")
    assert pipe.begun.wait(WAIT_S)
    writer.write("last\n")
    threading.Timer(0.0, pipe.reads.set).start()
    writer.close()
    assert pipe.read_to("last\n") == ["first", "last"]


def test_the_end_does_not_wait_for_a_reader_that_is_stuck() -> None:
    pipe = Pipe()
    writer = LineWriter(pipe.write)
    writer.write("first\n")
    writer.close()
    assert pipe.text == ""
    pipe.reads.set()
