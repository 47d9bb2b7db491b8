"""The in-flight ledger: what this picker has sent and not got back. No I/O, no clock.

A scrape tells what a server had when it was asked, W waiting and R running; what was reserved since is in
neither. So the *effective queue* of a row is

    waiting + unseen

where `unseen` counts the reservations that are still held and were made after the last good scrape was
*started*. A request that reached the server before it wrote its page may be in both for one scrape interval:
that errs on the side of spreading. Nothing in flight is ever added to W or R beyond that, so no request is
counted twice for longer than one interval. A row without metrics has W and R unknown; there the whole
`inflight_requests` is all that is known.
"""

from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.decision import Reservation


class Ledger:
    """Sole writer of the table's in-flight columns."""

    __slots__ = ("_marked", "_reserved", "_seen", "_since_mark", "_table", "held", "released", "reserved")

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        size = len(table.endpoints)
        # Read and written one row at a time, for which lists are several times quicker than columns.
        self._reserved = [0] * size
        """Reservations ever made on the row's tenant; numbers the next one."""
        self._marked = [0] * size
        """`_reserved` when the scrape under way was started."""
        self._seen = [0] * size
        """`_reserved` when the last good scrape was started."""
        self._since_mark = [0] * size
        """Reservations held that were made after the scrape under way was started."""
        self.held = 0
        """Reservations held, those on endpoints that are gone included."""
        self.reserved = 0
        self.released = 0
        table.on_free(self._forget)

    def reserve(self, reservation: Reservation) -> None:
        """Count the reservation's request and tokens on its row."""
        row = reservation.row
        if row >= len(self._reserved):
            self._grow()
        table = self._table
        reservation.sequence = self._reserved[row] = self._reserved[row] + 1
        self._since_mark[row] += 1
        table.unseen[row] += 1
        table.inflight_requests[row] += 1
        table.inflight_tokens[row] += reservation.tokens
        self.held += 1
        self.reserved += 1

    def computed(self, reservation: Reservation) -> None:
        """Give back the reservation's tokens: the prompt has been computed. Only the first call counts."""
        if reservation.released or not reservation.tokens:
            return
        if self._table.is_current(reservation.row, reservation.generation):
            self._table.inflight_tokens[reservation.row] -= reservation.tokens
        reservation.tokens = 0

    def release(self, reservation: Reservation) -> bool:
        """Give the reservation back; return False, and do nothing, when that was done before."""
        if reservation.released:
            return False
        if reservation.tokens:
            self.computed(reservation)
        reservation.released = True
        self.held -= 1
        self.released += 1
        row, table = reservation.row, self._table
        if table.is_current(row, reservation.generation):
            table.inflight_requests[row] -= 1
            if reservation.sequence > self._seen[row]:
                table.unseen[row] -= 1
            if reservation.sequence > self._marked[row]:
                self._since_mark[row] -= 1
        return True

    def scrape_started(self, row: int) -> None:
        """Remember what was reserved before a scrape of the row is sent; the latest start counts."""
        if row >= len(self._reserved):
            self._grow()
        self._marked[row] = self._reserved[row]
        self._since_mark[row] = 0

    def reserved_since_scrape(self, row: int) -> bool:
        """Tell whether anything was reserved on the row since its last scrape started, even if given back."""
        return row < len(self._reserved) and self._reserved[row] != self._marked[row]

    def scrape_succeeded(self, row: int) -> None:
        """Take what was reserved before the scrape's start as counted by the server."""
        self._seen[row] = self._marked[row]
        self._table.unseen[row] = self._since_mark[row]

    def _forget(self, row: int) -> None:
        if row < len(self._reserved):
            for column in (self._reserved, self._marked, self._seen, self._since_mark):
                column[row] = 0

    def _grow(self) -> None:
        more = len(self._table.endpoints) - len(self._reserved)
        for rows in (self._reserved, self._marked, self._seen, self._since_mark):
            rows.extend([0] * more)
