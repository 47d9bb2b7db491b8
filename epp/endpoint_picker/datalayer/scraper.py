"""Asks every ready endpoint for its metrics page, over and over, and writes the scrape columns of the table.

Each endpoint has one kept-alive connection and at most one request in flight. A scrape needs no task, future
or timer of its own: one timer ticks several times an interval, which spreads the scrapes over it, and bytes
are read in the transport's callback. Only a new connection takes a task. A peer can affect its own row only.
"""

import asyncio
import errno
import logging
import random
import ssl
from collections.abc import Callable
from typing import Final, cast

from typing_extensions import override

from endpoint_picker.datalayer.contact import Contact
from endpoint_picker.datalayer.http_response import RedirectError, ResponseError, ResponseReader
from endpoint_picker.datalayer.metrics_page import Reading
from endpoint_picker.datalayer.redirect import MAX_REDIRECTS, followed
from endpoint_picker.datalayer.scrape_access import ScrapeAccess
from endpoint_picker.datalayer.scrape_columns import Columns
from endpoint_picker.datalayer.scrape_pace import Chance, Pace
from endpoint_picker.datalayer.scrape_plan import ScrapePlan
from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.faults import FaultLog

_LOG: Final = logging.getLogger(__name__)

#: Longest page that is read; a vLLM server writes some 50 KB.
MAX_PAGE_BYTES: Final = 4 << 20
#: Seconds that a scrape may take, connecting included.
DEADLINE_S: Final = 1.0
#: Requests under way at a time, over all endpoints.
MAX_IN_FLIGHT: Final = 256
#: Scrapes a second, over all endpoints: about a quarter of a core. In a larger pool each endpoint is scraped
#: less often, in turn, and the ledger counts what was sent in between.
MAX_PER_SECOND: Final = 4000
#: Ticks an interval.
TICKS: Final = 5
#: Seconds between two ticks while there is nothing to scrape.
WITHOUT_PLAN_S: Final = 0.5

#: Errors of connecting whose cause is this process, not the server.
_OWN_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})


class Scraper:
    """Keeps the scrape columns current. Start `run` as a task; cancel it to stop."""

    def __init__(
        self,
        columns: Columns,
        plan: ScrapePlan | None,
        *,
        clock: Callable[[], float],
        interval: float = 0.05,
        max_in_flight: int = MAX_IN_FLIGHT,
        chance: Chance | None = None,
    ) -> None:
        """Write into `columns`; `interval` and `clock` are in seconds."""
        self.table = columns.table
        self._columns = columns
        self._plan = plan
        self._clock = clock
        self._own_interval = interval
        self._interval = interval
        self._tick_s = 0.0
        self._take_interval()
        self._max_in_flight = max_in_flight
        self._chance: Chance = chance or random.Random()  # noqa: S311 - jitter
        self.access = None if plan is None else ScrapeAccess(plan)
        """Token and TLS context of the plan."""
        self._targets: dict[int, _Target] = {}
        self._version = -1
        self._in_flight = 0
        self._doubtful_in_flight = 0
        """Requests under way to servers whose last scrape failed."""
        self._turn = 0
        """Position among the targets at which the next tick starts."""
        self.scrapes = 0
        """Pages read."""
        self.failures = 0
        """Failed scrapes: no connection, no usable page, or too late."""
        self.table.on_free(self._drop)

    @property
    def in_flight(self) -> int:
        """Return how many requests are under way."""
        return self._in_flight

    def use(self, plan: ScrapePlan | None) -> None:
        """Scrape by another plan from the next tick on; None stops scraping."""
        if plan != self._plan:
            self._plan = plan
            self.access = None if plan is None else ScrapeAccess(plan)
            self._take_interval()
            self.close()
            self._columns.forget_contact()

    def _take_interval(self) -> None:
        """Scrape at the plan's interval, or at the scraper's own."""
        self._interval = (self._plan.interval if self._plan is not None else 0.0) or self._own_interval
        self._tick_s = self._interval / TICKS

    async def run(self) -> None:
        """Scrape until cancelled."""
        loop = asyncio.get_running_loop()
        faults = FaultLog(_LOG, "scrape tick failed")
        due = loop.time()
        try:
            while True:
                try:
                    self.tick()
                except Exception as fault:
                    # Go on: without further ticks all metrics would expire for good.
                    faults.note(fault, loop.time())
                pause = self._tick_s if self._plan is not None else WITHOUT_PLAN_S
                due = max(due + pause, loop.time())
                await asyncio.sleep(due - loop.time())
        finally:
            self.close()

    def tick(self) -> None:
        """Expire old metrics, fail late scrapes, send a request to each target that is due."""
        now = self._clock()
        self._columns.expire(now)
        if self.access is not None:
            self.access.look(now)
        if self._version != self.table.version:
            self._follow()
        for target in self._targets.values():
            if target.asked_at is not None:
                if now - target.asked_at > DEADLINE_S:
                    target.fail(
                        "took too long", Contact.SILENT if target.is_connected else Contact.UNREACHABLE
                    )
            elif target.pace.is_slow and self._columns.is_chosen(target.row):
                target.pace.hurry(now)
        self._ask_in_turn(now)

    def _ask_in_turn(self, now: float) -> None:
        """Scrape the targets that are due, as far as the limits allow; the next tick goes on from there."""
        targets = list(self._targets.values())
        room = min(self._max_in_flight - self._in_flight, max(1, round(MAX_PER_SECOND * self._tick_s)))
        start = self._turn if self._turn < len(targets) else 0
        for position in (*range(start, len(targets)), *range(start)):
            if room <= 0:
                self._turn = position
                return
            target = targets[position]
            if target.asked_at is None and now >= target.pace.due:
                # Targets that failed last may hang until the deadline: they get at most half of the requests.
                if target.is_doubtful and self._doubtful_in_flight >= max(1, self._max_in_flight // 2):
                    continue
                target.ask(now)
                room -= 1

    def close(self) -> None:
        """Drop all targets and their connections; the next tick makes those that are needed."""
        for row in list(self._targets):
            self._drop(row)
        self._version = -1

    def _follow(self) -> None:
        """Make the targets match the ready rows. `on_free` has dropped rows that lost their tenant."""
        self._version = self.table.version
        wanted = set(self.table.ready_rows.tolist()) if self._plan is not None else set()
        for row, target in list(self._targets.items()):
            # Compare by identity: changed labels may name another engine.
            if row not in wanted or target.endpoint is not self.table.endpoints[row]:
                self._drop(row)
        for row in wanted - set(self._targets):
            endpoint = self.table.endpoints[row]
            if endpoint is not None and self._plan is not None and self.access is not None:
                pace = Pace(self._interval, self._chance)
                self._targets[row] = _Target(self, row, endpoint, self._plan, self.access, pace)
                self._columns.forget_contact(row)

    def _drop(self, row: int) -> None:
        target = self._targets.pop(row, None)
        if target is not None:
            target.close()

    # Called by targets.

    def started(self, row: int, *, doubtful: bool) -> None:
        """Note that a request to the row's server starts; `doubtful`: its last scrape failed."""
        self._in_flight += 1
        self._doubtful_in_flight += doubtful
        self._columns.started(row)

    def ended(self, *, doubtful: bool) -> None:
        """Note that a request is over, with or without success."""
        self._in_flight -= 1
        self._doubtful_in_flight -= doubtful

    def is_busy(self, row: int, reading: Reading) -> bool:
        """Tell whether the page shows requests, or this picker has sent some to the row's server."""
        return reading.waiting > 0 or reading.running > 0 or self._columns.is_chosen(row)

    def now(self) -> float:
        """Return the clock's time."""
        return self._clock()

    def failed(self, row: int, contact: Contact, in_a_row: int) -> None:
        """Count a failed scrape, the `in_a_row`-th since the last success."""
        self.failures += 1
        self._columns.failed(row, contact, in_a_row)

    def write(self, row: int, reading: Reading, asked_at: float) -> None:
        """Write a reading into the row's scrape columns; its age counts from `asked_at`."""
        self.scrapes += 1
        self._columns.write(row, reading, asked_at)


class _Target:
    """One endpoint: its connection, its request under way, its pace."""

    __slots__ = (
        "_access",
        "_address",
        "_asked_doubtful",
        "_connecting",
        "_failures",
        "_hops",
        "_owner",
        "_page",
        "_path",
        "_plan",
        "_port",
        "_request",
        "_request_version",
        "_response",
        "_transport",
        "asked_at",
        "endpoint",
        "pace",
        "row",
    )

    def __init__(
        self,
        owner: Scraper,
        row: int,
        endpoint: Endpoint,
        plan: ScrapePlan,
        access: ScrapeAccess,
        pace: Pace,
    ) -> None:
        self._owner = owner
        self._plan = plan
        self._access = access
        self.row = row
        self.endpoint = endpoint
        self.pace = pace
        self._page = plan.reader(endpoint.labels)
        self._address = (endpoint.node_address if plan.at_node else "") or endpoint.address
        self._port, self._path = self._place()
        """Port and path of the page: from the plan, or from the redirect followed last."""
        self._hops = 0
        """Redirects followed by the scrape under way."""
        self._request = b""
        self._request_version = -1
        """`ScrapeAccess.version` that `_request` was built with."""
        self._response = ResponseReader(MAX_PAGE_BYTES)
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._failures = 0
        """Failed scrapes in a row."""
        self._asked_doubtful = False
        self.asked_at: float | None = None
        """When the request under way was started; None while there is none."""

    @property
    def is_connected(self) -> bool:
        """Tell whether there is a connection to the server."""
        return self._transport is not None

    @property
    def is_doubtful(self) -> bool:
        """Tell whether the last scrape failed."""
        return self._failures > 0

    def ask(self, now: float) -> None:
        """Send a request, over a new connection where there is none."""
        self.asked_at = now
        self.pace.asked(now)
        self._hops = 0
        self._asked_doubtful = self.is_doubtful
        self._owner.started(self.row, doubtful=self._asked_doubtful)
        if not self._access.is_usable:
            self.fail(self._access.complaint, Contact.WITHOUT_METRICS)
            return
        if self._request_version != self._access.version:
            # The token or TLS context changed: the open connection was made with the old one.
            self._disconnect()
            self._build_request()
        if self._transport is not None:
            self._transport.write(self._request)
        else:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def fail(self, why: str, contact: Contact) -> None:
        """Give the scrape up, and pause longer after each failure in a row."""
        self._failures += 1
        if self._port != self.endpoint.port:
            # The page has its own port: a failure there must not count against the port that serves requests.
            contact = Contact.WITHOUT_METRICS
        self._owner.failed(self.row, contact, self._failures)
        _LOG.debug("scrape of %s failed: %s", self.endpoint.hostport, why)
        self.pace.failed(self._owner.now())
        self.close()
        if (self._port, self._path) != self._place():
            # The remembered redirect may be the cause: start from the plan's place next time.
            self._port, self._path = self._place()
            self._request_version = -1

    def close(self) -> None:
        """End the request under way and the connection."""
        if self.asked_at is not None:
            self._end()
        self._disconnect()

    def _end(self) -> None:
        self.asked_at = None
        self._owner.ended(doubtful=self._asked_doubtful)

    def _disconnect(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._transport is not None:
            transport, self._transport = self._transport, None
            transport.abort()

    def _place(self) -> tuple[int, str]:
        return self._plan.port or self.endpoint.port, self._plan.path

    @property
    def _authority(self) -> str:
        address = self._address
        return f"[{address}]:{self._port}" if ":" in address else f"{address}:{self._port}"

    def _build_request(self) -> None:
        token = self._access.token
        authorization = f"Authorization: Bearer {token}\r\n" if token else ""
        self._request = (
            f"GET {self._path} HTTP/1.1\r\nHost: {self._authority}\r\n{authorization}"
            "Accept: text/plain\r\nAccept-Encoding: identity\r\nUser-Agent: headroom-epp\r\n\r\n"
        ).encode("ascii")
        self._request_version = self._access.version

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        context = self._access.context
        name = (self._plan.server_name or self._address) if context is not None else None
        try:
            await loop.create_connection(
                lambda: _Link(self), self._address, self._port, ssl=context, server_hostname=name
            )
        except (OSError, ValueError) as error:  # ValueError: a server name that is no host name
            self._connecting = None
            self.fail(str(error), _contact_of(error))
        else:
            self._connecting = None

    def _follow(self, location: str) -> None:
        """Send the request to the redirect's place, within the deadline of the same scrape."""
        scheme = "https" if self._plan.uses_tls else "http"
        place = followed(location, f"{scheme}://{self._authority}{self._path}")
        if place is None:
            self.fail("redirects to another host", Contact.WITHOUT_METRICS)
            return
        if self._hops >= MAX_REDIRECTS:
            self.fail("redirects without end", Contact.WITHOUT_METRICS)
            return
        self._hops += 1
        self._port, self._path = place
        self._disconnect()
        self._build_request()
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    # Called by the link.

    def connected(self, transport: asyncio.Transport) -> None:
        """Send the request, unless the scrape is over or another connection took it."""
        if self.asked_at is None or self._transport is not None:
            transport.abort()
            return
        self._response = ResponseReader(MAX_PAGE_BYTES)
        self._transport = transport
        transport.write(self._request)

    def received(self, transport: asyncio.Transport, data: bytes) -> None:
        """Feed the response reader; write the row when the page is complete."""
        if transport is not self._transport:
            return
        if self.asked_at is None:
            self.fail("sent what it was not asked for", Contact.WITHOUT_METRICS)
            return
        try:
            page = self._response.feed(data)
        except RedirectError as redirect:
            self._follow(redirect.location)
            return
        except ResponseError as error:
            self.fail(str(error), Contact.WITHOUT_METRICS)
            return
        if page is not None:
            self._complete(page)

    def lost(self, transport: asyncio.Transport) -> None:
        """Handle the end of the connection: it completes a page without a length, or fails the scrape."""
        if transport is not self._transport:
            return
        self._transport = None
        if self.asked_at is None:
            return
        page = self._response.closed()
        if page is None:
            self.fail("closed the connection", Contact.SILENT)
        else:
            self._complete(page)

    def _complete(self, page: bytes) -> None:
        asked_at = self.asked_at
        reading = self._page.read(page)
        beside = self._plan.largest is not None
        if asked_at is None or not (reading.attributes if beside else reading.is_useful):
            self.fail("has none of the expected series", Contact.WITHOUT_METRICS)
            return
        self._end()
        self._failures = 0
        # What lies beside the load is read at its interval, however busy the server is.
        busy = beside or self._owner.is_busy(self.row, reading)
        self.pace.read(self._owner.now(), busy=busy, size=len(page))
        self._owner.write(self.row, reading, asked_at)
        if not self._response.keep_alive:
            self.close()


def _contact_of(error: OSError | ValueError) -> Contact:
    """Return the contact that a failure to connect stands for."""
    if isinstance(error, ConnectionRefusedError):
        return Contact.REFUSED
    if isinstance(error, ssl.SSLError):
        # The port accepts connections, but speaks no TLS or has a certificate that is not trusted.
        return Contact.WITHOUT_METRICS
    own = isinstance(error, OSError) and error.errno in _OWN_ERRORS
    return Contact.UNKNOWN if own else Contact.UNREACHABLE


class _Link(asyncio.Protocol):
    """One connection of a target. The target ignores calls from any but its current connection."""

    __slots__ = ("_target", "_transport")

    def __init__(self, target: _Target) -> None:
        self._target = target
        self._transport: asyncio.Transport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._target.connected(self._transport)

    @override
    def data_received(self, data: bytes) -> None:
        if self._transport is not None:
            self._target.received(self._transport, data)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._target.lost(self._transport)
