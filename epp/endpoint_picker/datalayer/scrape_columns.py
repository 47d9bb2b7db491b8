"""Writes readings of model servers into the endpoint table. Pure, so that a simulation can call it."""

from collections.abc import Callable
from typing import Protocol

from endpoint_picker.datalayer.contact import FAILURES_TO_TELL, Contact
from endpoint_picker.datalayer.ledger import Ledger
from endpoint_picker.datalayer.metrics_page import Reading
from endpoint_picker.datalayer.table import EndpointTable


class Columns(Protocol):
    """Takes what a scraper reads."""

    table: EndpointTable

    def started(self, row: int) -> None:
        """Note that a scrape starts."""
        ...

    def is_chosen(self, row: int) -> bool:
        """Tell whether requests go to the row's server, so that it should be scraped soon."""
        ...

    def write(self, row: int, reading: Reading, asked_at: float) -> None:
        """Write a reading, whose age counts from when it was asked for."""
        ...

    def failed(self, row: int, contact: Contact, in_a_row: int) -> None:
        """Note a failed scrape."""
        ...

    def forget_contact(self, row: int | None = None) -> None:
        """Note that nothing is known of how the row's server, or with None every server, answers."""
        ...

    def expire(self, now: float) -> None:
        """Set what is too old to unknown."""
        ...


class ExporterColumns:
    """Writes the attributes that an exporter beside the servers shows, and nothing else."""

    __slots__ = ("table",)

    def __init__(self, table: EndpointTable) -> None:
        self.table = table

    def started(self, row: int) -> None:
        """Do nothing: an exporter's page counts no requests."""

    def is_chosen(self, row: int) -> bool:
        """Return False: requests change nothing about when an exporter is asked."""
        return False

    def write(self, row: int, reading: Reading, asked_at: float) -> None:
        """Write the attributes, as of when the page was asked for."""
        for key, value in reading.attributes:
            self.table.attributes.write(row, key, value, asked_at)

    def failed(self, row: int, contact: Contact, in_a_row: int) -> None:
        """Do nothing: the exporter's failure says nothing about the server. The attributes expire."""

    def forget_contact(self, row: int | None = None) -> None:
        """Do nothing, likewise."""

    def expire(self, now: float) -> None:
        """Do nothing: the servers' scraper expires all attributes."""


class ScrapeColumns:
    """Writes the table's scrape columns; only `EndpointTable.replace` resets them beside it."""

    __slots__ = ("_ledger", "_on_block_size", "_on_page", "_pages", "table")

    def __init__(
        self,
        table: EndpointTable,
        ledger: Ledger,
        on_block_size: Callable[[], None] = lambda: None,
        on_page: Callable[[], None] = lambda: None,
    ) -> None:
        """Call `on_block_size` whenever a server reports another block size, `on_page` after every page."""
        self.table = table
        self._ledger = ledger
        self._on_block_size = on_block_size
        self._on_page = on_page
        self._pages: dict[int, tuple[float, float, float]] = {}
        """Row to the load of its last page: waiting, running, KV usage."""
        table.on_free(self._forget)

    def started(self, row: int) -> None:
        """Note that a scrape starts: its page will not count requests reserved from now on."""
        self._ledger.scrape_started(row)

    def is_chosen(self, row: int) -> bool:
        """Tell whether requests are in flight to the row's server, or were reserved since its last scrape."""
        return self._ledger.reserved_since_scrape(row) or bool(self.table.inflight_requests[row])

    def write(self, row: int, reading: Reading, asked_at: float) -> None:
        """Write a reading, whose age counts from when it was asked for, in seconds of the caller's clock."""
        table = self.table
        progress = self._ledger.progress
        page = (reading.waiting, reading.running, reading.kv_usage)
        progress.page_read(row, changed=page != self._pages.get(row), at=asked_at)
        self._pages[row] = page
        if progress.stands_still(row, page, asked_at):
            page = progress.as_the_others(row)
        table.waiting[row], table.running[row], table.kv_usage[row] = page
        table.scraped_at[row] = asked_at
        table.scrapes += 1
        table.contact[row] = Contact.ANSWERS
        table.missing[row] = reading.missing
        self._ledger.scrape_succeeded(row)
        table.adapters.report(row, reading.adapters, asked_at)
        for key, value in reading.attributes:
            table.attributes.write(row, key, value, asked_at)
        if reading.num_blocks:
            table.num_blocks[row] = reading.num_blocks
        if reading.block_size and reading.block_size != table.block_size[row]:
            table.block_size[row] = reading.block_size
            self._on_block_size()
        self._on_page()

    def _forget(self, row: int) -> None:
        self._pages.pop(row, None)

    def failed(self, row: int, contact: Contact, in_a_row: int) -> None:
        """Note a failed scrape; from `FAILURES_TO_TELL` in a row on, it sets the row's contact."""
        if in_a_row >= FAILURES_TO_TELL and contact is not Contact.UNKNOWN:
            self.table.contact[row] = contact

    def forget_contact(self, row: int | None = None) -> None:
        """Set the row's contact, or with None every row's, to UNKNOWN."""
        self.table.contact[slice(None) if row is None else row] = Contact.UNKNOWN

    def expire(self, now: float) -> None:
        """Set what is too old to unknown, except for endpoints that still answer requests."""
        table, ledger = self.table, self._ledger
        table.expire(now)
        for row in ledger.progress.work_unscraped(now):
            # The estimate takes all requests in flight into account, so none is left unseen.
            ledger.scrape_started(row)
            ledger.scrape_succeeded(row)
            load = ledger.progress.as_the_others(row)
            table.waiting[row], table.running[row], table.kv_usage[row] = load
