"""The publishers of a pool's servers: which there are, where they listen, what each has told. Pure.

With discovery a server's engine is asked at its own address: port `socket_port` plus its rank, which is the
position of the endpoint's port in the pool times `ranks`, plus the rank behind that port. What a topic says
of the server is then of no account; its last part names the model. With `bind` engines connect to the picker,
and a topic's second part says whose message it is: `kv@<address:port, address or pod>@<model>`.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from endpoint_picker.datalayer.kv_blocks import KvCounts, SourceBlocks
from endpoint_picker.datalayer.kv_events import BadBatchError, decode, rank_of
from endpoint_picker.datalayer.kv_index import MAX_SOURCE_ENTRIES, KvIndex
from endpoint_picker.datalayer.kv_stream import KvStream
from endpoint_picker.datalayer.table import Endpoint, EndpointTable

#: Most ranks of one endpoint.
MAX_RANKS: Final = 64
#: Longest topic, in bytes.
MAX_TOPIC: Final = 1024


@dataclass(frozen=True, slots=True)
class KvEventsPlan:
    """Where the events come from."""

    discover: bool = True
    """Every server of the pool is asked."""
    bind: str = ""
    """ZMQ address that engines connect to; "" is none."""
    topic_filter: str = "kv@"
    """Beginning of the topics that are read."""
    socket_port: int = 5557
    replay_port: int = 0
    """Port for old messages; 0: there are none."""
    ranks: int = 1
    """Data-parallel ranks behind each port of a server, each with a publisher."""
    selector: tuple[tuple[str, str], ...] = ()
    """Labels of the servers that publish; none: all."""
    most_blocks: int = MAX_SOURCE_ENTRIES
    """Most blocks of a source that are kept."""


class KvSource:
    """One publisher."""

    __slots__ = ("_index", "_topic", "blocks", "endpoint", "rank", "row", "sources", "stream")

    def __init__(
        self,
        sources: "KvSources",
        index: KvIndex,
        row: int,
        rank: int,
        endpoint: Endpoint,
        plan: KvEventsPlan,
    ) -> None:
        self.sources = sources
        self._index = index
        self._topic = b""
        self.row = row
        self.rank = rank
        """Number that is added to the ports."""
        self.endpoint = endpoint
        self.blocks = SourceBlocks(index, index.add_source(row), sources.counts, plan.most_blocks)
        self.stream = KvStream(self._apply, self.blocks.clear, replays=plan.replay_port > 0)

    @property
    def name(self) -> str:
        """Return "ip:port" of the server, with "@dp" and the rank if that is not 0."""
        return self.endpoint.hostport + (f"@dp{self.rank}" if self.rank else "")

    def received(self, topic: bytes, number: bytes, payload: bytes, now: float) -> None:
        """Take a published message's frames."""
        if len(number) != 8:
            self.sources.malformed += 1
            return
        if topic != self._topic:
            self._topic = topic
            self._index.note_model(model_of(topic))
        self.sources.received[self.name] += 1
        self.stream.live(int.from_bytes(number, "big"), payload, now)
        self.settle()

    def settle(self) -> None:
        """Note in the index whether the row's sources have told all that they hold."""
        self.sources.settle(self.row)

    def _apply(self, payload: bytes) -> None:
        sources = self.sources
        try:
            batch = decode(payload)
        except BadBatchError:
            sources.malformed += 1
            return
        sources.unknown += batch.unknown
        sources.malformed += batch.malformed
        sources.events += len(batch.events)
        for event in batch.events:
            self.blocks.apply(event)
        self._index.heard(self.row)


class KvSources:
    """The sources of all servers in the table, by a plan. The shell sets `on_open` and `on_close`."""

    __slots__ = (
        "_index",
        "_rows",
        "_table",
        "counts",
        "events",
        "malformed",
        "on_close",
        "on_open",
        "plan",
        "received",
        "strangers",
        "unknown",
    )

    def __init__(self, table: EndpointTable, index: KvIndex) -> None:
        self._table = table
        self._index = index
        self._rows: dict[int, list[KvSource]] = {}
        self.plan: KvEventsPlan | None = None
        self.on_open: Callable[[KvSource], None] = lambda _source: None
        self.on_close: Callable[[KvSource], None] = lambda _source: None
        self.counts = KvCounts()
        self.events = 0
        self.unknown = 0
        """Events of types that are not known."""
        self.malformed = 0
        """Messages and events that cannot be read."""
        self.strangers = 0
        """Messages whose topic names no server of the pool."""
        self.received: Counter[str] = Counter()
        """Messages by source; those of sources that left are dropped."""
        table.on_free(self._forget)
        table.on_add(self._welcome)

    def use(self, plan: KvEventsPlan | None) -> None:
        """Follow this plan from now on; None: no events are wanted. An equal plan changes nothing."""
        if plan == self.plan:
            return
        for row in list(self._rows):
            self._forget(row)
        self.plan = plan
        for row in self._table.occupied():
            self._welcome(row)

    def __iter__(self) -> Iterator[KvSource]:
        return iter([source for sources in self._rows.values() for source in sources])

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def settle(self, row: int) -> None:
        """Note in the index whether the row's sources have told all that they hold."""
        self._index.set_known(row, known=all(each.stream.complete for each in self._rows.get(row, ())))

    def of_topic(self, topic: bytes, payload: bytes) -> KvSource | None:
        """Return the source of a message on the bound socket; it is made with its first message.

        None, and counted, when the topic names no server of the pool.
        """
        plan = self.plan
        row = self._row_of(topic) if plan is not None else None
        rank = rank_of(payload)
        if plan is None or row is None or rank >= MAX_RANKS:
            self.strangers += 1
            return None
        for source in self._rows.get(row, ()):
            if source.rank == rank:
                return source
        return self._open(row, rank, plan)

    def _row_of(self, topic: bytes) -> int | None:
        parts = topic[:MAX_TOPIC].decode("utf-8", "replace").split("@")
        if len(parts) < 3:
            return None
        named = parts[1]
        rows = [
            (row, endpoint)
            for row in self._table.occupied()
            if (endpoint := self._table.endpoints[row]) is not None
        ]
        for row, endpoint in rows:
            if named == endpoint.hostport:
                return row
        found = [
            row
            for row, endpoint in rows
            if named in (endpoint.address, endpoint.name, endpoint.name.rpartition("-rank-")[0])
        ]
        return found[0] if len(found) == 1 else None

    def _welcome(self, row: int) -> None:
        plan, endpoint = self.plan, self._table.endpoints[row]
        if plan is None or not plan.discover or endpoint is None:
            return
        if any(endpoint.labels.get(key) != value for key, value in plan.selector):
            return
        first = port_index(endpoint) * plan.ranks
        for rank in range(first, first + plan.ranks):
            self._open(row, rank, plan)

    def _open(self, row: int, rank: int, plan: KvEventsPlan) -> KvSource | None:
        endpoint = self._table.endpoints[row]
        if endpoint is None:
            return None
        source = KvSource(self, self._index, row, rank, endpoint, plan)
        self._rows.setdefault(row, []).append(source)
        self.settle(row)
        self.on_open(source)
        return source

    def _forget(self, row: int) -> None:
        for source in self._rows.pop(row, ()):
            source.blocks.close()
            self.on_close(source)
            self.received.pop(source.name, None)


def port_index(endpoint: Endpoint) -> int:
    """Return the position of the endpoint's port in the pool's list, which its name ends with."""
    number = endpoint.name.rpartition("-rank-")[2]
    return int(number) if number.isdigit() and len(number) < 3 else 0


def model_of(topic: bytes) -> str:
    """Return the model that a topic names; "" when it names none."""
    parts = topic[:MAX_TOPIC].decode("utf-8", "replace").split("@", 2)
    return parts[2] if len(parts) == 3 else ""
