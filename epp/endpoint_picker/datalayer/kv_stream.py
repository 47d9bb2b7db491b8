"""One publisher's numbered messages, brought into order. Pure: no sockets; the clock is passed in.

Publishers number their messages from 0 and keep the last ones for a *replay*: a request with a number is
answered with the messages from it on. The stream passes every message on once, in order, and says when it
wants a replay. It asks from the last message that it knows, not from the one after it: only if the answer
begins with that very message has the publisher not been started again.

| what comes | what follows |
|---|---|
| the next number | passed on |
| an old number with a known content, or an old time | a repeated message: dropped |
| an old number with another content | the publisher started again: what is known is dropped, replay from 0 |
| a number beyond the next | kept; replay. A late message may fill the gap before that |
| the answer lacks the last known message | what is known is dropped; the answer is passed on |
| three replays fail, or there is none | what is known is dropped; the kept ones are passed on |

`complete` says whether all messages since the publisher's start were passed on, since the last drop.
"""

from collections.abc import Callable
from typing import Final

from xxhash import xxh64_intdigest

from endpoint_picker.datalayer.kv_events import time_of

#: Messages whose content is remembered, to tell a repeated one from one of a new publisher.
REMEMBERED: Final = 256
#: Messages, and bytes of them, kept while some before them are missing. Beyond that they are dropped, and the
#: replay is asked for again.
MAX_KEPT: Final = 4096
MAX_KEPT_BYTES: Final = 32 << 20
#: Seconds that a missing message may be late where there is no replay.
REORDER_S: Final = 0.2
#: Seconds without a message of a replay after which the attempt failed; longest time of all attempts.
REPLAY_IDLE_S: Final = 2.0
REPLAY_TOTAL_S: Final = 120.0
#: Attempts without progress before a replay is given up, and seconds before the next one.
REPLAY_ATTEMPTS: Final = 3
REPLAY_PAUSE_S: Final = 30.0


class KvStream:
    """The order of one publisher's messages.

    `apply(payload)` is called for each message in order, `drop()` when what was passed on so far is void.
    """

    __slots__ = (
        "_apply",
        "_attempts",
        "_digests",
        "_drop",
        "_gap_since",
        "_kept",
        "_kept_bytes",
        "_last_time",
        "_next",
        "_passed_on",
        "_reconnected",
        "_replays",
        "_retry_at",
        "_verifying",
        "_void_answer",
        "complete",
        "dropped",
        "gaps",
        "repeated",
        "replay_from",
        "replaying",
        "restarts",
    )

    def __init__(self, apply: Callable[[bytes], None], drop: Callable[[], None], *, replays: bool) -> None:
        """`replays` says whether the publisher can be asked for old messages."""
        self._apply = apply
        self._drop = drop
        self._replays = replays
        self._next: int | None = None
        """Number of the next message; None before the first."""
        self._passed_on = False
        """A message was passed on since the last drop."""
        self._digests: dict[int, int] = {}
        self._last_time = 0.0
        self._kept: dict[int, bytes] = {}
        self._kept_bytes = 0
        self._gap_since: float | None = None
        self._reconnected = False
        """No message has come since the connection was made."""
        self._attempts = 0
        self._retry_at: float | None = None
        self._verifying = False
        """The answer's first message must be the last known one."""
        self._void_answer = False
        """The rest of the answer is of no use."""
        self.replay_from: int | None = None
        """Number from which a replay is wanted; the caller starts it by `replay_started`."""
        self.replaying = False
        self.complete = False
        self.gaps = 0
        self.repeated = 0
        self.restarts = 0
        self.dropped = 0
        """Times that what was known became void."""

    # What comes from the publisher.

    def connected(self, now: float) -> None:
        """Note a new connection: messages may have been missed, or the publisher may have started again."""
        if self._replays:
            self._forget_kept()  # the answer has them, if they are this publisher's
            self._want()
        self._reconnected = True

    def live(self, number: int, payload: bytes, now: float) -> None:
        """Take a published message."""
        reconnected, self._reconnected = self._reconnected, False
        if self.replaying or self.replay_from is not None:
            self._keep(number, payload)
        elif self._next is None:
            self._first(number, payload)
        elif number == self._next:
            self._pass_on(number, payload)
            if self._kept:
                self._drain(now)
        elif number < self._next:
            self._old(number, payload, by_time=not reconnected)
        else:
            self.gaps += 1
            self._keep(number, payload)
            if self._replays and self._retry_at is None:
                self._want()
            elif self._gap_since is None:
                self._gap_since = now

    def replay_started(self, now: float) -> None:
        """Note that the replay from `replay_from` was asked for."""
        self.replay_from = None
        self.replaying = True
        self._verifying = self._next is not None and self._next > 0
        self._void_answer = False

    def replayed(self, number: int, payload: bytes, now: float) -> None:
        """Take a message of the answer."""
        if not self.replaying or self._void_answer:
            return
        if self._next is None:
            self._begin(number)
            self._pass_on(number, payload)
            return
        if self._verifying:
            self._verifying = False
            if number == self._next - 1:
                if self._digests.get(number) == _digest(payload):
                    return
                self._started_again()
                return
            # The publisher does not have the last known message any more.
            self._begin(number)
        if number == self._next:
            self._attempts = 0
            self._pass_on(number, payload)
        elif number > self._next:
            self._begin(number)
            self._pass_on(number, payload)

    def replay_ended(self, now: float) -> None:
        """Take the end of the answer."""
        if not self.replaying:
            return
        self.replaying = False
        if self._void_answer:
            self._want()
            return
        if self._verifying:
            # It has none from the last known message on: it is a younger publisher.
            self._started_again()
            self._want()
            return
        if self._next is None:
            self._begin(0)
        self._attempts += 1
        self._drain(now)

    def replay_failed(self, now: float) -> None:
        """Note that the answer did not come, or not to its end."""
        self.replaying = False
        self._attempts += 1
        if self._attempts < REPLAY_ATTEMPTS:
            self._want()
            return
        self._give_up(now)

    def tick(self, now: float) -> float | None:
        """Do what is due; return when to call again, None: after the next message."""
        if self._gap_since is not None and now >= self._gap_since + REORDER_S:
            self._skip_gap()
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            self._attempts = 0
            if not self.complete:
                self._want_all()
        due = [each for each in (self._gap_due(), self._retry_at) if each is not None]
        return min(due) if due else None

    # Order.

    def _gap_due(self) -> float | None:
        return None if self._gap_since is None else self._gap_since + REORDER_S

    def _first(self, number: int, payload: bytes) -> None:
        """Take the first message of all: its number says whether some were missed."""
        if number and self._replays and self._retry_at is None:
            self._keep(number, payload)
            self._want()
        else:
            self._begin(number)
            self._pass_on(number, payload)

    def _begin(self, number: int) -> None:
        """Go on from a message as if nothing was known."""
        self._void()
        self._next = number
        self.complete = number == 0

    def _void(self) -> None:
        self._digests.clear()
        self._last_time = 0.0
        self._next = None
        self.complete = False
        if self._passed_on:
            self._passed_on = False
            self.dropped += 1
            self._drop()

    def _pass_on(self, number: int, payload: bytes) -> None:
        self._next = number + 1
        self._digests[number] = _digest(payload)
        self._digests.pop(number - REMEMBERED, None)
        self._last_time = time_of(payload)
        self._passed_on = True
        self._apply(payload)

    def _old(self, number: int, payload: bytes, *, by_time: bool = True) -> None:
        known = self._digests.get(number)
        sent = time_of(payload)
        if known == _digest(payload) or (by_time and known is None and 0.0 < sent <= self._last_time):
            self.repeated += 1
            return
        self.restarts += 1
        self._forget_kept()
        self._void()
        self._first(number, payload)

    def _started_again(self) -> None:
        """Drop what is known, and have the new publisher's messages replayed once this answer has ended."""
        self.restarts += 1
        self._forget_kept()
        self._void()
        self._void_answer = True

    def _keep(self, number: int, payload: bytes) -> None:
        self._kept_bytes -= len(self._kept.pop(number, b""))
        if len(self._kept) >= MAX_KEPT or self._kept_bytes + len(payload) > MAX_KEPT_BYTES:
            self._forget_kept()
        self._kept[number] = payload
        self._kept_bytes += len(payload)

    def _forget_kept(self) -> None:
        self._kept.clear()
        self._kept_bytes = 0
        self._gap_since = None

    def _drain(self, now: float) -> None:
        """Pass on the kept messages that follow; where some are missing still, go on asking."""
        for number in sorted(self._kept):
            assert self._next is not None  # noqa: S101 - every caller has set it
            payload = self._kept.get(number)
            if payload is None:
                continue
            if number > self._next:
                break
            del self._kept[number]
            self._kept_bytes -= len(payload)
            if number == self._next:
                self._attempts = 0
                self._pass_on(number, payload)
            else:
                self._old(number, payload)
                if self.replay_from is not None or self._next is None:
                    return
        if not self._kept:
            self._gap_since = None
            self._attempts = 0
            return
        if self._replays and self._retry_at is None:
            if self._attempts < REPLAY_ATTEMPTS:
                self._want()
            else:
                self._give_up(now)
        elif self._gap_since is None:
            self._gap_since = now

    def _skip_gap(self) -> None:
        """Go on after messages that will not come."""
        self._gap_since = None
        if self._kept:
            self._begin(min(self._kept))
            self._follow()

    def _follow(self) -> None:
        """Pass on the kept messages from the next one on, over further gaps."""
        for number in sorted(self._kept):
            payload = self._kept.pop(number)
            if number != self._next:
                self._begin(number)
            self._pass_on(number, payload)
        self._kept_bytes = 0

    def _give_up(self, now: float) -> None:
        """Go on without the missing messages, and ask for all of them again after a pause."""
        self._attempts = 0
        self._retry_at = now + REPLAY_PAUSE_S
        if self._kept:
            self._skip_gap()
        else:
            self.complete = False

    # Replays.

    def _want(self) -> None:
        """Want the messages from the last known one on."""
        if not self.replaying:
            self.replay_from = 0 if self._next is None else max(0, self._next - 1)

    def _want_all(self) -> None:
        """Want all messages; what is known stays until the answer begins."""
        if not self.replaying and self._replays:
            self._next = None
            self.replay_from = 0


def _digest(payload: bytes) -> int:
    return xxh64_intdigest(payload)
