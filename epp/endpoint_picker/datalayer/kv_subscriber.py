"""Hears the publishers of a pool's KV-cache events over ZMQ: sockets and timers for `KvSources`.

ZMQ connects again by itself, with a growing pause. The sockets' file descriptors are watched by the event
loop itself: a message then costs a few microseconds, through zmq.asyncio's futures it costs some sixty. A
turn of the loop reads a few messages of one socket, so that a burst of events does not hold requests back.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from endpoint_picker.datalayer.kv_events import MAX_PAYLOAD
from endpoint_picker.datalayer.kv_index import KvIndex
from endpoint_picker.datalayer.kv_inflow import CHECK_S, Inflow
from endpoint_picker.datalayer.kv_sources import KvEventsPlan, KvSource, KvSources
from endpoint_picker.datalayer.kv_stream import REPLAY_IDLE_S, REPLAY_TOTAL_S

#: Messages that ZMQ keeps for a socket while the loop is busy; a publisher then keeps or drops its own.
RECEIVED: Final = 256
#: Frames, of which a message has three, or bytes of them, read in one turn of the loop: about a millisecond.
SLICE_FRAMES: Final = 48
SLICE_BYTES: Final = 128 << 10
#: Frames that are kept of a message, one more than those that are wanted have.
FRAMES: Final = 4
#: Blocks of cleared sources that are removed in one turn.
SWEEP: Final = 2000
#: Milliseconds before a lost connection is made again; the pause doubles up to the second.
RECONNECT_MS: Final = 100
RECONNECT_MAX_MS: Final = 5000
#: Replays at a time; each brings up to a publisher's whole buffer.
REPLAYS: Final = 8

_OPENED: Final = (zmq.EVENT_CONNECTED, zmq.EVENT_ACCEPTED)
_MONITORED: Final = (
    zmq.EVENT_CONNECTED | zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
)
_END: Final = b"\xff" * 8

_log = logging.getLogger(__name__)


class _Reader:
    """Calls `take(frames)` for every message of a socket, a slice in each turn of the loop."""

    __slots__ = (
        "_again",
        "_fd",
        "_frames",
        "_inflow",
        "_is_closed",
        "_is_shared",
        "_loop",
        "_take",
        "socket",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        socket: "zmq.Socket[bytes]",
        take: Callable[[list[bytes]], None],
        inflow: Inflow | None,
        *,
        is_shared: bool,
    ) -> None:
        """`inflow` hears of each frame; with `is_shared` the socket has several connections."""
        self._loop = loop
        self._inflow = inflow
        self._is_shared = is_shared
        self.socket = socket
        self._take = take
        self._fd = int(socket.get(zmq.FD))
        self._is_closed = False
        self._frames: list[bytes] = []
        """The first frames of a message whose last one was not read yet."""
        self._again: asyncio.Handle | None = None
        loop.add_reader(self._fd, self.read)
        self._again = loop.call_soon(self.read)

    def read(self) -> None:
        """Read until nothing is left, or a slice.

        The descriptor tells of changes only, so what a slice leaves is read in the loop's next turn.
        """
        if self._again is not None:
            self._again.cancel()
            self._again = None
        size = parts = 0
        while parts < SLICE_FRAMES and size < SLICE_BYTES:
            if self._is_closed:
                return
            try:
                frame = self._receive()
            except zmq.Again:
                return
            size += len(frame)
            parts += 1
            frames = self._frames
            if len(frames) < FRAMES:
                frames.append(frame)
            if not self.socket.get(zmq.RCVMORE):
                self._frames = []
                self._take(frames)
        if not self._is_closed:
            self._again = self._loop.call_soon(self.read)

    def _receive(self) -> bytes:
        inflow = self._inflow
        if self._is_shared and inflow is not None:
            got = self.socket.recv(zmq.NOBLOCK, copy=False)
            inflow.read(len(got), int(got.get(zmq.SRCFD)))
            return got.bytes
        frame = self.socket.recv(zmq.NOBLOCK)
        if inflow is not None:
            inflow.read(len(frame))
        return frame

    def close(self) -> None:
        """Stop reading and close the socket."""
        self._is_closed = True
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._fd)
        self.socket.close(linger=0)


class _Link:
    """The sockets of one source: its events, their connection's state, and a replay while there is one."""

    __slots__ = (
        "_idle",
        "_inflow",
        "_monitor",
        "_owner",
        "_replay",
        "_replay_inflow",
        "_replay_monitor",
        "_sub",
        "_timer",
        "_total",
        "reconnections",
        "source",
    )

    def __init__(self, owner: "KvSubscriber", source: KvSource, plan: KvEventsPlan) -> None:
        self._owner = owner
        self.source = source
        self.reconnections = -1
        self._inflow, self._replay_inflow = Inflow(), Inflow()
        self._replay_monitor: _Reader | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._total: asyncio.TimerHandle | None = None
        self._replay: _Reader | None = None
        self._sub: _Reader | None = None
        self._monitor: _Reader | None = None
        if plan.discover:
            sub = owner.socket(zmq.SUB)
            sub.subscribe(plan.topic_filter)
            self._monitor = owner.monitor(sub, self._inflow, self._shook_hands)
            owner.connect(sub, source, plan.socket_port)
            self._sub = owner.reader(sub, self._published, self._inflow)
        else:
            source.stream.connected(owner.now)
            self.settle()

    def _shook_hands(self) -> None:
        self.reconnections += 1
        self.source.stream.connected(self._owner.now)
        self.settle()

    def check(self) -> int:
        """Shut down connections that have too much unread; return how many there were."""
        return self._inflow.check() + self._replay_inflow.check()

    def _published(self, frames: list[bytes]) -> None:
        if len(frames) == 3:
            self.take(frames[0], frames[1], frames[2])

    def take(self, topic: bytes, number: bytes, payload: bytes) -> None:
        """Take a published message."""
        self.source.received(topic, number, payload, self._owner.now)
        self._do_what_is_due()

    def settle(self) -> None:
        """Note what the stream knows, and do what it wants: a replay, a call at a time."""
        self.source.settle()
        self._do_what_is_due()

    def _do_what_is_due(self) -> None:
        source = self.source
        if source.stream.replay_from is not None:
            self._owner.queue(self)
        self._owner.sweep_soon()
        due = source.stream.tick(self._owner.now)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = self._owner.later(due - self._owner.now, self.settle)

    # The replay.

    def ask(self, plan: KvEventsPlan) -> None:
        """Ask for old messages, through a socket of its own: no late answer to an earlier request gets in."""
        first = self.source.stream.replay_from or 0
        dealer = self._owner.socket(zmq.DEALER)
        self._replay_inflow = Inflow()
        self._replay_monitor = self._owner.monitor(dealer, self._replay_inflow, _nothing)
        self._owner.connect(dealer, self.source, plan.replay_port)
        self.source.stream.replay_started(self._owner.now)
        self._replay = self._owner.reader(dealer, self._answered, self._replay_inflow)
        self._total = self._owner.later(REPLAY_TOTAL_S, self._failed)
        self._wait()
        try:
            dealer.send_multipart((b"", first.to_bytes(8, "big")), zmq.NOBLOCK)
        except zmq.ZMQError:
            self._owner.errors["replay"] += 1
            self._failed()

    def _wait(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = self._owner.later(REPLAY_IDLE_S, self._failed)

    def _answered(self, frames: list[bytes]) -> None:
        if len(frames) != 3 or len(frames[1]) != 8:
            return
        stream = self.source.stream
        if frames[1] == _END:
            self._end_replay()
            stream.replay_ended(self._owner.now)
            self.settle()
        else:
            self._wait()
            stream.replayed(int.from_bytes(frames[1], "big"), frames[2], self._owner.now)

    def _failed(self) -> None:
        self._end_replay()
        self._owner.errors["replay"] += 1
        self.source.stream.replay_failed(self._owner.now)
        self.settle()

    def _end_replay(self) -> None:
        for timer in (self._idle, self._total):
            if timer is not None:
                timer.cancel()
        if self._replay is not None:
            _close(self._replay, self._replay_monitor)
            self._replay = self._replay_monitor = None
            self._owner.replay_over()

    def close(self) -> None:
        """Close the sockets and the timers."""
        self._end_replay()
        if self._timer is not None:
            self._timer.cancel()
        if self._sub is not None:
            _close(self._sub, self._monitor)


def _close(reader: _Reader, monitor: _Reader | None) -> None:
    if monitor is not None:
        reader.socket.disable_monitor()
        monitor.close()
    reader.close()


def _nothing() -> None:
    pass


class KvSubscriber:
    """Opens and closes the links of a pool's sources. For one event loop; `close` it before the loop ends."""

    def __init__(
        self,
        sources: KvSources,
        index: KvIndex,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._sources = sources
        self._index = index
        self._loop = loop
        self._clock = clock
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._links: dict[KvSource, _Link] = {}
        self._bound: _Reader | None = None
        self._bound_monitor: _Reader | None = None
        self._bound_inflow = Inflow()
        self._bound_to = ""
        self._queue: deque[_Link] = deque()
        self._replays = 0
        self._sweep: asyncio.Handle | None = None
        self._checks: asyncio.TimerHandle | None = None
        self.errors = {"bind": 0, "connect": 0, "flood": 0, "replay": 0}
        """Operations on sockets that failed; "flood": connections that had too much unread."""
        sources.on_open = self._opened
        sources.on_close = self._closed
        for source in sources:
            self._opened(source)
        self.follow()

    @property
    def now(self) -> float:
        """Return the time of the pool's clock."""
        return self._clock()

    def follow(self) -> None:
        """Bind the socket that the plan in use names, and release another one; raises nothing."""
        plan = self._sources.plan
        wanted = "" if plan is None else plan.bind
        if wanted == self._bound_to:
            return
        self._release_bound()
        self._bound_to = wanted
        if plan is None or not wanted:
            return
        socket = self.socket(zmq.SUB)
        socket.subscribe(plan.topic_filter)
        self._bound_inflow = Inflow()
        self._bound_monitor = self.monitor(socket, self._bound_inflow, _nothing)
        try:
            socket.bind(wanted)
        except zmq.ZMQError as error:
            socket.disable_monitor()
            self._bound_monitor.close()
            self._bound_monitor = None
            socket.close(linger=0)
            self.errors["bind"] += 1
            _log.error("KV-cache events: cannot bind %s: %s", wanted, error.strerror)
            return
        self._bound = self.reader(socket, self._bound_received, self._bound_inflow, is_shared=True)
        self._check_soon()

    def _release_bound(self) -> None:
        if self._bound is not None:
            _close(self._bound, self._bound_monitor)
            self._bound = self._bound_monitor = None

    def _bound_received(self, frames: list[bytes]) -> None:
        if len(frames) != 3:
            return
        source = self._sources.of_topic(frames[0], frames[2])
        link = None if source is None else self._links.get(source)
        if link is not None:
            link.take(frames[0], frames[1], frames[2])

    @property
    def active(self) -> int:
        """Return how many sources are followed."""
        return len(self._links)

    @property
    def queued(self) -> int:
        """Return how many replays wait for their turn."""
        return len(self._queue)

    def reconnections(self) -> list[tuple[str, int]]:
        """Return of each source how often its connection was made again."""
        return [(source.name, max(0, link.reconnections)) for source, link in self._links.items()]

    def close(self) -> None:
        """Close everything."""
        for source in list(self._links):
            self._closed(source)
        self._release_bound()
        if self._checks is not None:
            self._checks.cancel()
        if self._sweep is not None:
            self._sweep.cancel()
        self._sources.on_open = self._sources.on_close = lambda _source: None
        self._context.destroy(linger=0)

    def _opened(self, source: KvSource) -> None:
        plan = self._sources.plan
        if plan is not None:
            self._links[source] = _Link(self, source, plan)
            self._check_soon()

    def _closed(self, source: KvSource) -> None:
        link = self._links.pop(source, None)
        if link is not None:
            link.close()
        self.sweep_soon()

    # For the links.

    def socket(self, kind: int) -> "zmq.Socket[bytes]":
        """Return a socket with bounds on what it holds."""
        socket = self._context.socket(kind)
        socket.set(zmq.RCVHWM, RECEIVED)
        socket.set(zmq.MAXMSGSIZE, MAX_PAYLOAD)
        socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        socket.set(zmq.LINGER, 0)
        return socket

    def connect(self, socket: "zmq.Socket[bytes]", source: KvSource, port: int) -> None:
        """Connect to the source's port; ZMQ goes on trying."""
        address = source.endpoint.address
        socket.set(zmq.IPV6, ":" in address)
        host = f"[{address}]" if ":" in address else address
        try:
            socket.connect(f"tcp://{host}:{port + source.rank}")
        except zmq.ZMQError as error:
            self.errors["connect"] += 1
            _log.error("KV-cache events of %s: %s", source.name, error.strerror)

    def reader(
        self,
        socket: "zmq.Socket[bytes]",
        take: Callable[[list[bytes]], None],
        inflow: Inflow | None = None,
        *,
        is_shared: bool = False,
    ) -> _Reader:
        """Return a reader of the socket."""
        return _Reader(self._loop, socket, take, inflow, is_shared=is_shared)

    def monitor(
        self, socket: "zmq.Socket[bytes]", inflow: Inflow, shook_hands: Callable[[], None]
    ) -> _Reader:
        """Have the connections that a socket will have watched, and a call made when one is ready."""

        def take(frames: list[bytes]) -> None:
            event = parse_monitor_message(frames)
            if event["event"] in _OPENED:
                inflow.opened(int(event["value"]))
            elif event["event"] == zmq.EVENT_DISCONNECTED:
                inflow.closed(int(event["value"]))
            else:
                shook_hands()

        return self.reader(socket.get_monitor_socket(_MONITORED), take)

    def _check_soon(self) -> None:
        if self._checks is None and (self._links or self._bound is not None):
            self._checks = self._loop.call_later(CHECK_S, self._check)

    def _check(self) -> None:
        self._checks = None
        self._check_soon()
        floods = self._bound_inflow.check() + sum(link.check() for link in self._links.values())
        if floods:
            self.errors["flood"] += floods
            _log.warning("KV-cache events: %d connections had too much unread and were closed", floods)

    def later(self, delay: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Call after a time in seconds."""
        return self._loop.call_later(max(0.0, delay), call)

    def queue(self, link: _Link) -> None:
        """Have the link ask for its replay when fewer than `REPLAYS` run."""
        if link not in self._queue:
            self._queue.append(link)
            self._loop.call_soon(self._next_replay)

    def replay_over(self) -> None:
        """Let the next replay begin."""
        self._replays -= 1
        self._loop.call_soon(self._next_replay)

    def _next_replay(self) -> None:
        plan = self._sources.plan
        while self._queue and self._replays < REPLAYS and plan is not None:
            link = self._queue.popleft()
            if self._links.get(link.source) is link and link.source.stream.replay_from is not None:
                self._replays += 1
                link.ask(plan)

    def sweep_soon(self) -> None:
        """Remove the blocks of cleared sources in the loop's next turns."""
        if self._sweep is None and self._index.is_sweeping:
            self._sweep = self._loop.call_soon(self._swept)

    def _swept(self) -> None:
        self._sweep = None
        self._index.sweep(SWEEP)
        self.sweep_soon()
