"""Writes readings of model servers into the endpoint table. Pure, so that a simulation can call it."""

from collections.abc import Callable

from endpoint_picker.datalayer.contact import FAILURES_TO_TELL, Contact
from endpoint_picker.datalayer.ledger import Ledger
from endpoint_picker.datalayer.metrics_page import Reading
from endpoint_picker.datalayer.table import EndpointTable


class ScrapeColumns:
    """Writes the table's scrape columns; only `EndpointTable.replace` resets them beside it."""

    __slots__ = ("_ledger", "_on_block_size", "_pages", "table")

    def __init__(
        self, table: EndpointTable, ledger: Ledger, on_block_size: Callable[[], None] = lambda: None
    ) -> None:
        """Call `on_block_size` whenever a server reports another block size."""
        self.table = table
        self._ledger = ledger
        self._on_block_size = on_block_size
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
        """Set what is too old to unknown."""
        self.table.expire(now)
