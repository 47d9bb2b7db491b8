"""The endpoint table: a row an endpoint, a column a signal. It does no I/O and reads no clock.

Columns that decisions read for all candidates are numpy arrays; the others are lists, which cost a quarter
of the time where a request writes one row. Columns have one writer each: the scrape columns belong to
`ScrapeColumns`, the in-flight columns to the ledger, the signs of life to `Progress`, identity and readiness
to `replace`, which also resets all columns of a row that loses its endpoint. In a load column NaN means
*unknown* (never scraped, or too old). Arithmetic carries NaN along, so no reader mistakes an unknown server
for an idle one.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from endpoint_picker.datalayer.adapters import AdapterColumns
from endpoint_picker.datalayer.attributes import AttributeColumns

Rows = NDArray[np.intp]
"""Row numbers of the table, in ascending order unless said otherwise."""
Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

INITIAL_CAPACITY: Final = 16
#: Age, in seconds, from which metrics are unknown: `expire` sets the load columns to NaN.
STALE_AFTER_S: Final = 2.0

_EMPTY: Final[Rows] = np.empty(0, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One (pod, target port) pair."""

    name: str
    """`<pod>-rank-<index of the port in the pool's list>`."""
    namespace: str
    address: str
    """IP literal, without brackets."""
    port: int
    labels: Mapping[str, str] = field(default_factory=dict)
    ready: bool = True
    """False while it may not be picked; its row, in-flight counts and prefixes are kept for its return."""
    node_address: str = ""
    """IP literal of the node that the pod runs on; "" when it is not known."""
    node: str = ""
    """Name of the node that the pod runs on; "" is unknown."""
    incarnation: str = ""
    """Changes when the server loses its state (another pod, or a restarted container)."""

    @property
    def hostport(self) -> str:
        """Return "ip:port", or "[ip]:port" for IPv6."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

    def is_same_server(self, other: "Endpoint") -> bool:
        """Tell whether the columns of `other` hold for this endpoint, too."""
        return (self.address, self.port, self.incarnation) == (other.address, other.port, other.incarnation)


class EndpointTable:
    """All endpoints of the pool. Not thread-safe. Columns are replaced when they grow, so never keep one."""

    __slots__ = (
        "_by_hostport",
        "_by_ip",
        "_by_key",
        "_free",
        "_on_add",
        "_on_free",
        "adapters",
        "answered_at",
        "attributes",
        "awaiting",
        "block_size",
        "contact",
        "decode_tokens",
        "endpoints",
        "freed",
        "generation",
        "hostports",
        "inflight_requests",
        "inflight_tokens",
        "kv_usage",
        "missing",
        "num_blocks",
        "page_answers",
        "page_changed_at",
        "progress_at",
        "ready",
        "ready_rows",
        "running",
        "scraped_at",
        "scrapes",
        "slowness",
        "unseen",
        "unseen_work",
        "version",
        "waiting",
    )

    def __init__(self) -> None:
        size = INITIAL_CAPACITY
        # Identity, written by `replace`.
        self.endpoints: list[Endpoint | None] = [None] * size
        self.hostports: list[str] = [""] * size
        self.ready = np.zeros(size, dtype=np.bool_)
        self.generation = [0] * size
        """Counts a row's tenants, so that a reservation on an earlier one cannot change its successor."""
        # Scraped, written by `ScrapeColumns`.
        self.waiting: Floats = np.full(size, np.nan)
        """Requests in the server's queue."""
        self.running: Floats = np.full(size, np.nan)
        """Requests in the server's batch."""
        self.kv_usage: Floats = np.full(size, np.nan)
        """Fraction of the KV cache in use, [0, 1]."""
        self.scraped_at: Floats = np.full(size, -np.inf)
        """When the last good scrape was started, seconds of the caller's monotonic clock."""
        self.contact = np.zeros(size, dtype=np.int64)
        """`contact.Contact` of the row's server."""
        self.block_size = np.zeros(size, dtype=np.int64)
        """Tokens in a KV-cache block; 0 is unknown."""
        self.num_blocks = np.zeros(size, dtype=np.int64)
        """KV-cache blocks of the server, all its engines together; 0 is unknown."""
        self.missing = np.zeros(size, dtype=np.int64)
        """Set of `metrics_page.Signal`s that the engine is configured to show and the last page lacked."""
        self.attributes = AttributeColumns(size)
        """Numbers that the configuration names."""
        self.adapters = AdapterColumns(size)
        """LoRA adapters; its docstring names its writers."""
        # In flight from this picker, written by the ledger.
        self.inflight_requests = np.zeros(size, dtype=np.int64)
        self.inflight_tokens = np.zeros(size, dtype=np.int64)
        """Uncached prompt tokens that were sent and have not been computed yet.

        And `decode_tokens`.
        """
        self.decode_tokens = [0] * size
        """The part of `inflight_tokens` that stays until the end of the requests: prompts that another server
        computes, and with an inflight-load-producer the expected answers."""
        self.unseen = np.zeros(size, dtype=np.int64)
        """Requests in flight that the last good scrape cannot have counted."""
        self.unseen_work: Floats = np.zeros(size)
        """`unseen` times `slowness`, so that no decision multiplies; the writers of the two write it, too."""
        self.freed = np.zeros(size, dtype=np.int64)
        """Requests that the last page may have counted and that have ended since; 0 without flow control."""
        self.awaiting = [0] * size
        """Requests in flight whose first byte has not come."""
        # Signs of life, written by `Progress`; seconds of the caller's monotonic clock.
        self.progress_at = [-math.inf] * size
        """The last sign of life, or when the first of the requests without an answer was sent."""
        self.answered_at = [-math.inf] * size
        """The last first byte of a response."""
        self.page_changed_at = [-math.inf] * size
        """When the metrics page that first showed the present values was asked for."""
        self.page_answers = [0] * size
        """First bytes since then."""
        self.slowness = [1.0] * size
        """Mean time that the endpoint takes for a request over that of all; 1 while it is unknown."""
        self.ready_rows: Rows = _EMPTY
        self.version = 0
        """Grows with every change of identity or readiness."""
        self.scrapes = 0
        """Grows with every change of `waiting`, `running`, `kv_usage` or `scraped_at`."""
        self._by_key: dict[tuple[str, str], int] = {}
        self._by_hostport: dict[str, int] = {}
        self._by_ip: dict[str, list[int]] = {}
        self._free = list(range(size - 1, -1, -1))
        self._on_free: list[Callable[[int], None]] = []
        self._on_add: list[Callable[[int], None]] = []

    def __len__(self) -> int:
        return len(self._by_key)

    def on_free(self, forget: Callable[[int], None]) -> None:
        """Call `forget(row)` for every row that loses its tenant, while its columns are still set."""
        self._on_free.append(forget)

    def on_add(self, welcome: Callable[[int], None]) -> None:
        """Call `welcome(row)` for every row that gets a tenant, right after it did."""
        self._on_add.append(welcome)

    def replace(self, endpoints: Iterable[Endpoint]) -> bool:
        """Make the table hold exactly these endpoints; return whether anything changed.

        Endpoints that stay keep their row and its columns. Of two endpoints with one namespace and name the
        later is used.
        """
        wanted = {(each.namespace, each.name): each for each in endpoints}
        changed = False
        for key, row in list(self._by_key.items()):
            old, new = self.endpoints[row], wanted.get(key)
            if new is None or old is None or not new.is_same_server(old):
                self._remove(key, row)
                changed = True
        for key, new in wanted.items():
            known = self._by_key.get(key)
            if known is None:
                self._add(key, new)
                changed = True
            elif self.endpoints[known] != new:
                self.endpoints[known] = new
                self.ready[known] = new.ready
                changed = True
        if changed:
            self._index()
        return changed

    def rows_of(self, subset: Iterable[str]) -> Rows:
        """Return the ready rows that the entries name: "ip" is every port of it, "ip:port" one."""
        found: set[int] = set()
        for entry in subset:
            row = self._by_hostport.get(entry)
            if row is not None:
                found.add(row)
            else:
                found.update(self._by_ip.get(entry.strip("[]"), ()))
        return np.array(sorted(found), dtype=np.intp) if found else _EMPTY

    def row_of(self, hostport: str) -> int | None:
        """Return the ready row of the address ("ip:port"), None when there is none."""
        return self._by_hostport.get(hostport)

    def row_named(self, namespace: str, name: str) -> int | None:
        """Return the row of the endpoint of this name, ready or not; None when there is none."""
        return self._by_key.get((namespace, name))

    def occupied(self) -> list[int]:
        """Return the rows that have a tenant, ready or not, in ascending order."""
        return sorted(self._by_key.values())

    def is_current(self, row: int, generation: int) -> bool:
        """Tell whether the row still has the tenant that it had at `generation`."""
        return self.generation[row] == generation

    def expire(self, now: float) -> None:
        """Set what is older than STALE_AFTER_S to unknown: load columns, shown adapters, attributes."""
        stale = self.scraped_at < now - STALE_AFTER_S
        if stale.any():
            self.scrapes += 1
            self.waiting[stale] = np.nan
            self.running[stale] = np.nan
            self.kv_usage[stale] = np.nan
            self.adapters.expire(stale)
        self.attributes.expire(now - STALE_AFTER_S)

    def _add(self, key: tuple[str, str], endpoint: Endpoint) -> None:
        if not self._free:
            self._grow()
        row = self._free.pop()
        self._by_key[key] = row
        self.endpoints[row] = endpoint
        self.hostports[row] = endpoint.hostport
        self.ready[row] = endpoint.ready
        for welcome in self._on_add:
            welcome(row)

    def _remove(self, key: tuple[str, str], row: int) -> None:
        for forget in self._on_free:
            forget(row)
        del self._by_key[key]
        self.endpoints[row] = None
        self.hostports[row] = ""
        self.ready[row] = False
        self.generation[row] += 1
        for load in (self.waiting, self.running, self.kv_usage):
            load[row] = np.nan
        self.scraped_at[row] = -np.inf
        self.contact[row] = 0
        self.missing[row] = 0
        for count in (self.block_size, self.num_blocks, self.inflight_requests, self.inflight_tokens):
            count[row] = 0
        self.unseen[row] = self.freed[row] = self.awaiting[row] = self.page_answers[row] = 0
        self.decode_tokens[row] = 0
        self.slowness[row] = 1.0
        self.unseen_work[row] = 0.0
        self.answered_at[row] = self.progress_at[row] = self.page_changed_at[row] = -math.inf
        self.attributes.forget(row)
        self.adapters.forget(row)
        self._free.append(row)

    def _index(self) -> None:
        """Rebuild `ready_rows` and the lookups by address."""
        self.version += 1
        self.scrapes += 1
        self.ready_rows = np.flatnonzero(self.ready)
        self._by_hostport = {}
        self._by_ip = {}
        for row in self.ready_rows.tolist():
            endpoint = self.endpoints[row]
            if endpoint is not None:
                self._by_hostport[self.hostports[row]] = row
                self._by_ip.setdefault(endpoint.address, []).append(row)

    def _grow(self) -> None:
        old = len(self.endpoints)
        self.endpoints.extend([None] * old)
        self.hostports.extend([""] * old)
        self.generation.extend([0] * old)
        self._free.extend(range(2 * old - 1, old - 1, -1))
        for name, fill in _COLUMNS.items():
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.full(old, fill, dtype=column.dtype)]))
        for name, value in _LISTS.items():
            getattr(self, name).extend([value] * old)
        self.attributes.grow(2 * old)
        self.adapters.grow(2 * old)


_COLUMNS: Final[Mapping[str, float]] = {
    "ready": 0,
    "waiting": np.nan,
    "running": np.nan,
    "kv_usage": np.nan,
    "scraped_at": -np.inf,
    "contact": 0,
    "block_size": 0,
    "num_blocks": 0,
    "missing": 0,
    "inflight_requests": 0,
    "inflight_tokens": 0,
    "unseen": 0,
    "freed": 0,
    "unseen_work": 0.0,
}
"""Every growing numpy column with the value of a row without tenant."""

_LISTS: Final[Mapping[str, float]] = {
    "awaiting": 0,
    "decode_tokens": 0,
    "progress_at": -math.inf,
    "answered_at": -math.inf,
    "page_changed_at": -math.inf,
    "page_answers": 0,
    "slowness": 1.0,
}
"""The same for the columns that are lists."""
