"""Requests at servers that may be ended for more important ones that wait. Pure: the clock is passed in.

Only requests below 0 may, of the lowest priority first and of those the newest first: they have got least
done. One whose answer has begun is kept, and so is one that was sent because of `minShare` or `maxWait`.

An end makes room in the ledger at once, and the queue uses it before another request is ended. Where it
opens nothing, because a page has to show it first (a full cache), at most `MOST_UNPROVEN` are ended until
then.
"""

from typing import Final

from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.decision import Decision
from endpoint_picker.flowcontrol.flights import Flight

#: Ended requests whose room could not be used yet, at a time.
MOST_UNPROVEN: Final = 2
#: Seconds that a server gets to end a request before a page is asked for that must show it.
GRACE_S: Final = 0.25
#: The same where the picker's ledger is the load.
LEDGER_GRACE_S: Final = 0.01
#: Seconds after which an ended request counts as seen without a page.
LONGEST_S: Final = 10.0


class Evictions:
    """The requests of one pool that may be ended, and those whose end is not seen yet."""

    __slots__ = ("_running", "_table", "_unproven")

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self._running: dict[int, dict[Decision, Flight]] = {}
        """By priority; each in the order of dispatch."""
        self._unproven: list[tuple[float, int, int]] = []
        """(time of the end, row, generation)."""

    def __len__(self) -> int:
        return sum(map(len, self._running.values()))

    def add(self, decision: Decision, flight: Flight) -> None:
        """Note a request that was sent and may be ended."""
        self._running.setdefault(flight.band.priority, {})[decision] = flight

    def discard(self, decision: Decision, flight: Flight) -> None:
        """Note that a request may not be ended any more; a second call does nothing."""
        priority = flight.band.priority
        band = self._running.get(priority)
        if band is not None:
            band.pop(decision, None)
            if not band:
                del self._running[priority]

    def take(self, below: int) -> tuple[Decision, Flight] | None:
        """Take out the request that is to be ended for one of priority `below`; None when none may be."""
        for priority in sorted(self._running):
            if priority >= min(below, 0):
                break
            for decision, flight in reversed(self._running[priority].items()):
                first = decision.reservations[0]
                # The end of one at a server that has left makes no room.
                if self._table.is_current(first.row, first.generation) and self._table.ready[first.row]:
                    self.discard(decision, flight)
                    return decision, flight
        return None

    def may(self, now: float, *, reads_metrics: bool) -> bool:
        """Tell whether one more may be ended, by what is seen of those before."""
        if self._unproven:
            self._unproven = [each for each in self._unproven if not self._is_seen(each, now, reads_metrics)]
        return len(self._unproven) < MOST_UNPROVEN

    def ended(self, decision: Decision, now: float) -> None:
        """Note that a request was ended."""
        first = decision.reservations[0]
        self._unproven.append((now, first.row, first.generation))

    def used(self) -> None:
        """Note that the room of the last one was used."""
        if self._unproven:
            self._unproven.pop()

    def _is_seen(self, ended: tuple[float, int, int], now: float, reads_metrics: bool) -> bool:
        at, row, generation = ended
        if not reads_metrics:
            return now - at >= LEDGER_GRACE_S
        table = self._table
        return (
            now - at >= LONGEST_S
            or not table.is_current(row, generation)
            or table.scraped_at.item(row) >= at + GRACE_S
        )
