"""Scrapes in virtual time: the picker's pace and table columns, the servers' pages after a delay. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from endpoint_picker.datalayer.contact import Contact
from endpoint_picker.datalayer.metrics_page import Reading
from endpoint_picker.datalayer.scrape_columns import ScrapeColumns
from endpoint_picker.datalayer.scrape_pace import Chance, Pace
from pool_simulation.server import SimulatedServer

#: Ticks an interval, as in the picker's scraper.
TICKS: Final = 5
#: Size of a vLLM server's metrics page; a large one limits how often it is read.
PAGE_BYTES: Final = 45_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeTiming:
    """How the picker learns the servers' load. Times in seconds."""

    interval_s: float = 0.05
    """Between two scrapes of a busy server; above 0."""
    delay_s: float = 0.002
    """From the moment that a page shows to the moment at which its values are in the table."""


class _Target:
    __slots__ = ("asked", "failures", "generation", "pace", "row", "server")

    def __init__(self, server: SimulatedServer, row: int, generation: int, pace: Pace) -> None:
        self.server = server
        self.row = row
        self.generation = generation
        self.pace = pace
        self.failures = 0
        self.asked = False
        """Its page is on the way."""


_Page = tuple[_Target, Reading, float]
"""Target, what its page shows, when it was asked for."""


class Scrapes:
    """Asks every server of the table in turn. Call `tick` every `tick_s`, `arrive` when it says so."""

    def __init__(
        self, columns: ScrapeColumns, servers: list[SimulatedServer], timing: ScrapeTiming, chance: Chance
    ) -> None:
        self.tick_s = timing.interval_s / TICKS
        self.delay_s = timing.delay_s
        self._interval = timing.interval_s
        self._columns = columns
        self._servers = {server.hostport: server for server in servers}
        self._chance = chance
        self._targets: list[_Target] = []
        self._version = -1
        self.scrapes = 0
        """Pages written."""

    def tick(self, now: float) -> list[_Page]:
        """Expire old values and ask the servers that are due; pass the pages to `arrive` `delay_s` later."""
        columns = self._columns
        columns.expire(now)
        if self._version != columns.table.version:
            self._follow()
        pages: list[_Page] = []
        for target in self._targets:
            pace = target.pace
            if pace.is_slow and columns.is_chosen(target.row):
                pace.hurry(now)
            if target.asked or now < pace.due:
                continue
            pace.asked(now)
            columns.started(target.row)
            server = target.server
            reading = server.reading(now) if server.is_up else None
            if reading is not None:
                pages.append((target, reading, now))
                target.asked = True
            else:
                target.failures += 1
                contact = Contact.WITHOUT_METRICS if server.is_up else Contact.REFUSED
                columns.failed(target.row, contact, target.failures)
                pace.failed(now)
        return pages

    def arrive(self, pages: list[_Page], now: float) -> None:
        """Write pages into the table."""
        columns = self._columns
        table = columns.table
        for target, reading, asked_at in pages:
            row = target.row
            target.asked = False
            if not table.is_current(row, target.generation):
                continue
            columns.write(row, reading, asked_at)
            target.failures = 0
            busy = reading.waiting > 0 or reading.running > 0 or columns.is_chosen(row)
            target.pace.read(now, busy=busy, size=PAGE_BYTES)
        self.scrapes += len(pages)

    def _follow(self) -> None:
        """Make the targets match the table's ready rows."""
        table = self._columns.table
        self._version = table.version
        known = {(target.row, target.generation): target for target in self._targets}
        self._targets = []
        for row in table.ready_rows.tolist():
            generation = table.generation[row]
            target = known.get((row, generation))
            if target is None:
                server = self._servers[table.hostports[row]]
                target = _Target(server, row, generation, Pace(self._interval, self._chance))
            self._targets.append(target)


Later = Callable[[float, Callable[[], None]], None]


def keep_scraping(
    scrapes: Scrapes, later: Later, clock: Callable[[], float], alive: Callable[[], bool]
) -> None:
    """Tick now and from then on, for as long as `alive`; `later` calls a function at a virtual time."""

    def tick() -> None:
        if not alive():
            return
        now = clock()
        pages = scrapes.tick(now)
        if pages:
            later(now + scrapes.delay_s, lambda: scrapes.arrive(pages, clock()))
        later(now + scrapes.tick_s, tick)

    tick()
