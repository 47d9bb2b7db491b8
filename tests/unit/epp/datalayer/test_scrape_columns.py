"""Writing what was read of a server, as a simulation does it: without a scraper."""

import math

from endpoint_picker.datalayer.ledger import Ledger
from endpoint_picker.datalayer.metrics_page import Reading
from endpoint_picker.datalayer.scrape_columns import ScrapeColumns
from endpoint_picker.datalayer.table import STALE_AFTER_S, Endpoint, EndpointTable
from endpoint_picker.decision import Reservation


def stage() -> tuple[EndpointTable, Ledger, ScrapeColumns, list[int]]:
    table = EndpointTable()
    table.replace([Endpoint("p", "default", "10.0.0.1", 8000)])
    ledger, sizes = Ledger(table), list[int]()
    return (
        table,
        ledger,
        ScrapeColumns(table, ledger, lambda: sizes.append(int(table.block_size.max()))),
        sizes,
    )


def test_a_reading_fills_the_row_and_counts_what_was_reserved_before_it() -> None:
    table, ledger, columns, sizes = stage()
    (row,) = table.ready_rows.tolist()
    before, after = (Reservation(row, table.generation[row], tokens=5) for _ in range(2))
    ledger.reserve(before)
    columns.started(row)
    ledger.reserve(after)
    columns.write(row, Reading(3.0, 7.0, 0.5, block_size=16, num_blocks=1000), asked_at=50.0)
    assert (table.waiting[row], table.running[row], table.kv_usage[row]) == (3, 7, 0.5)
    assert table.unseen[row] == 1
    assert (table.block_size[row], table.num_blocks[row]) == (16, 1000)
    assert sizes == [16]
    columns.write(row, Reading(1.0, 7.0, 0.5, block_size=16, num_blocks=0), asked_at=51.0)
    assert (table.waiting[row], table.num_blocks[row]) == (1, 1000)
    assert sizes == [16]


def test_a_reading_ages_from_when_it_was_asked_for() -> None:
    table, _ledger, columns, _sizes = stage()
    (row,) = table.ready_rows.tolist()
    columns.started(row)
    columns.write(row, Reading(3.0, 7.0, 0.5, 0, 0), asked_at=50.0)
    columns.expire(50.0 + STALE_AFTER_S)
    assert table.waiting[row] == 3
    columns.expire(50.1 + STALE_AFTER_S)
    assert math.isnan(table.waiting[row])
