"""The in-flight ledger: the requests that this picker has sent and that have not ended. No I/O, no clock.

A scrape shows the W waiting and R running requests that the server had when it was asked. Requests
reserved since are in neither. So the *effective queue* of a row is

    waiting + unseen

where `unseen` counts the reservations that are still held and were made after the last good scrape was
*started*. A request that reached the server before it wrote its page may be in both for one scrape interval;
the error spreads requests. Nothing else in flight is added to W or R, so no request is counted twice for
longer than one interval. In a row without metrics W and R are unknown, and scorers use `inflight_requests`.

An endpoint that leaves the pool may come back with its requests still running: a pod that lost a label for a
moment, a pool that was deleted and applied again. Its reservations are kept aside and counted again when
the same server returns, whichever row it gets.
"""

from endpoint_picker.datalayer.progress import Progress
from endpoint_picker.datalayer.table import Endpoint, EndpointTable
from endpoint_picker.decision import Reservation

_Tenancy = tuple[int, int]
"""Row and generation."""
_Server = tuple[str, str, str, int, str]
"""Identity of a server: namespace, name, address, port, incarnation."""


class _Away:
    """The reservations on a server that left the table, or that returned under another tenancy."""

    __slots__ = ("awaiting", "decode_tokens", "moved", "requests", "reserved", "server", "tokens")

    def __init__(
        self, server: _Server, requests: int, tokens: int, decode_tokens: int, awaiting: int, reserved: int
    ) -> None:
        self.server = server
        self.requests = requests
        """Reservations that name the old tenancy. At 0 the entry is deleted: reservations bound entries."""
        self.tokens = tokens
        self.decode_tokens = decode_tokens
        self.awaiting = awaiting
        self.reserved = reserved
        """Number of the tenancy's last reservation."""
        self.moved: _Tenancy | None = None
        """The server's tenancy since its return."""


class Ledger:
    """Sole writer of the table's in-flight columns."""

    __slots__ = (
        "_away",
        "_away_servers",
        "_freed",
        "_marked",
        "_reserved",
        "_seen",
        "_since_mark",
        "_table",
        "held",
        "progress",
        "released",
        "reserved",
    )

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self.progress = Progress(table)
        """Which of the endpoints make progress with what was sent to them."""
        size = len(table.endpoints)
        # Lists: access to one row is several times quicker than in a numpy column.
        self._reserved = [0] * size
        """Reservations ever made on the row's tenant; numbers the next one."""
        self._marked = [0] * size
        """`_reserved` when the scrape under way was started."""
        self._seen = [0] * size
        """`_reserved` when the last good scrape was started."""
        self._since_mark = [0] * size
        """Reservations held that were made after the scrape under way was started."""
        self._freed = [0] * size
        """What `freed` noted since the scrape under way was started."""
        self.held = 0
        """Reservations held, including those on endpoints that left the table."""
        self.reserved = 0
        self.released = 0
        self._away: dict[_Tenancy, _Away] = {}
        self._away_servers: dict[_Server, _Tenancy] = {}
        """Servers that are not in the table, with their last tenancy."""
        table.on_free(self._keep_aside)
        table.on_add(self._take_back)

    def reserve(self, reservation: Reservation) -> None:
        """Count the reservation's request and tokens on its row."""
        row = reservation.row
        if row >= len(self._reserved):
            self._grow()
        table = self._table
        reservation.sequence = self._reserved[row] = self._reserved[row] + 1
        self._since_mark[row] += 1
        # `item` and an assignment take two thirds of the time of an addition in place.
        unseen = table.unseen[row] = table.unseen.item(row) + 1
        table.unseen_work[row] = unseen * table.slowness[row]
        table.inflight_requests[row] = table.inflight_requests.item(row) + 1
        table.awaiting[row] += 1
        tokens = reservation.tokens + reservation.decode_tokens
        table.inflight_tokens[row] = table.inflight_tokens.item(row) + tokens
        if reservation.decode_tokens:
            table.decode_tokens[row] += reservation.decode_tokens
        self.held += 1
        self.reserved += 1

    def computed(self, reservation: Reservation) -> None:
        """Note the first byte: the prompt has been computed, its tokens are given back. Counts once."""
        if reservation.released or reservation.answered:
            return
        table = self._table
        # The first condition is what `_is_here` nearly always finds, without its frame.
        if table.generation[reservation.row] == reservation.generation or self._is_here(reservation):
            row = reservation.row
            table.awaiting[row] -= 1
            if reservation.tokens:
                table.inflight_tokens[row] = table.inflight_tokens.item(row) - reservation.tokens
        elif away := self._away.get((reservation.row, reservation.generation)):
            away.awaiting -= 1
            away.tokens -= reservation.tokens
        reservation.answered = True
        reservation.tokens = 0

    def release(self, reservation: Reservation) -> bool:
        """Give the reservation back; return False, and do nothing, when that was done before."""
        if reservation.released:
            return False
        self._uncount(reservation)
        reservation.released = True
        self.held -= 1
        self.released += 1
        return True

    def move(self, reservation: Reservation, row: int) -> None:
        """Count the reservation on the row whose server answered; its prompt is computed.

        It does not count as unseen there: the server had it before it answered.
        """
        if reservation.released:
            return
        self._uncount(reservation)
        if row >= len(self._reserved):
            self._grow()
        reservation.row, reservation.generation = row, self._table.generation[row]
        reservation.sequence = -1  # below every mark, also that of a server that has just returned
        self._table.inflight_requests[row] += 1
        self._table.inflight_tokens[row] += reservation.decode_tokens
        self._table.decode_tokens[row] += reservation.decode_tokens

    def _uncount(self, reservation: Reservation) -> None:
        """Subtract the reservation's request and tokens from its row, or from its `_Away` entry."""
        if not reservation.answered:
            self.computed(reservation)
        table = self._table
        if table.generation[reservation.row] == reservation.generation or self._is_here(reservation):
            row = reservation.row
            table.inflight_requests[row] = table.inflight_requests.item(row) - 1
            if reservation.decode_tokens:
                table.inflight_tokens[row] -= reservation.decode_tokens
                table.decode_tokens[row] -= reservation.decode_tokens
            if reservation.sequence > self._seen[row]:
                unseen = table.unseen[row] = table.unseen.item(row) - 1
                table.unseen_work[row] = unseen * table.slowness[row]
            if reservation.sequence > self._marked[row]:
                self._since_mark[row] -= 1
        else:
            tenancy = (reservation.row, reservation.generation)
            if reservation.decode_tokens and (away := self._away.get(tenancy)):
                away.tokens -= reservation.decode_tokens
                away.decode_tokens -= reservation.decode_tokens
            self._leave(tenancy)

    def _is_here(self, reservation: Reservation) -> bool:
        """Tell whether the reservation's server is in the table; point the reservation at its row if so."""
        while not self._table.is_current(reservation.row, reservation.generation):
            tenancy = (reservation.row, reservation.generation)
            away = self._away.get(tenancy)
            if away is None or away.moved is None:
                return False
            reservation.row, reservation.generation = away.moved
            # `_take_back` counted all of the server's reservations as unseen, also those that `move` made.
            reservation.sequence = max(reservation.sequence, 0)
            self._leave(tenancy)
        return True

    def _leave(self, tenancy: _Tenancy) -> None:
        """Note that one reservation fewer names the old tenancy."""
        away = self._away.get(tenancy)
        if away is None:
            return
        away.requests -= 1
        if not away.requests:
            del self._away[tenancy]
            if away.moved is None:
                del self._away_servers[away.server]

    def scrape_started(self, row: int) -> None:
        """Mark what was reserved before a scrape of the row is sent; a later start replaces the mark."""
        if row >= len(self._reserved):
            self._grow()
        self._marked[row] = self._reserved[row]
        self._since_mark[row] = self._freed[row] = 0

    def reserved_since_scrape(self, row: int) -> bool:
        """Tell whether anything was reserved on the row since its last scrape started, even if given back."""
        return row < len(self._reserved) and self._reserved[row] != self._marked[row]

    def scrape_succeeded(self, row: int) -> None:
        """Treat reservations made before the scrape's start as counted by the server."""
        self._seen[row] = self._marked[row]
        table = self._table
        unseen = table.unseen[row] = self._since_mark[row]
        table.unseen_work[row] = unseen * table.slowness[row]
        table.freed[row] = self._freed[row]

    def freed(self, reservation: Reservation) -> None:
        """Note, for flow control, the end of a request: its server has one fewer than its last page shows."""
        row = reservation.row
        if (
            self._table.generation[row] == reservation.generation
            and row < len(self._freed)
            and reservation.sequence <= self._seen[row]
        ):
            self._table.freed[row] += 1
            self._freed[row] += 1

    def _keep_aside(self, row: int) -> None:
        """Keep the reservations of the row's tenant, which leaves the table, in an `_Away` entry."""
        if row >= len(self._reserved):
            return
        table, endpoint = self._table, self._table.endpoints[row]
        requests = int(table.inflight_requests[row])
        if requests and endpoint is not None:
            server, tenancy = _server(endpoint), (row, table.generation[row])
            self._away[tenancy] = _Away(
                server,
                requests,
                int(table.inflight_tokens[row]),
                int(table.decode_tokens[row]),
                table.awaiting[row],
                self._reserved[row],
            )
            self._away_servers[server] = tenancy
        for column in (self._reserved, self._marked, self._seen, self._since_mark, self._freed):
            column[row] = 0

    def _take_back(self, row: int) -> None:
        """Count again the reservations of the row's new tenant, if it was in the table before."""
        if not self._away_servers:
            return
        table, endpoint = self._table, self._table.endpoints[row]
        tenancy = None if endpoint is None else self._away_servers.pop(_server(endpoint), None)
        if tenancy is None:
            return
        if row >= len(self._reserved):
            self._grow()
        away = self._away[tenancy]
        away.moved = (row, table.generation[row])
        table.inflight_requests[row] = table.unseen[row] = self._since_mark[row] = away.requests
        table.unseen_work[row] = away.requests * table.slowness[row]
        table.inflight_tokens[row] = away.tokens
        table.decode_tokens[row] = away.decode_tokens
        table.awaiting[row] = away.awaiting
        self._reserved[row] = away.reserved
        # -1 is below every sequence number: no scrape since the return has counted any of them.
        self._marked[row] = self._seen[row] = -1

    def _grow(self) -> None:
        more = len(self._table.endpoints) - len(self._reserved)
        for rows in (self._reserved, self._marked, self._seen, self._since_mark, self._freed):
            rows.extend([0] * more)


def _server(endpoint: Endpoint) -> _Server:
    return endpoint.namespace, endpoint.name, endpoint.address, endpoint.port, endpoint.incarnation
