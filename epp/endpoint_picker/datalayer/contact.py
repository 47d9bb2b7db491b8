"""How endpoints answer the scraper, and what follows for the pool's ports. It does no I/O."""

from collections.abc import Iterator
from enum import IntEnum
from typing import Final

import numpy as np

from endpoint_picker.datalayer.metrics_page import Signal
from endpoint_picker.datalayer.table import EndpointTable
from inference_api.picker_health import MOST_PORTS, PickerHealth, PortHealth

#: Failures in a row after which the last one sets an endpoint's contact. A single late scrape does not mean
#: that the server is at fault.
FAILURES_TO_TELL: Final = 3


class Contact(IntEnum):
    """The result of asking an endpoint for its metrics."""

    UNKNOWN = 0
    """Not scraped yet, or fewer than `FAILURES_TO_TELL` failures and no success."""
    ANSWERS = 1
    """A metrics page with the expected series."""
    WITHOUT_METRICS = 2
    """Something else: an HTTP error, another protocol, a page without the expected series."""
    SILENT = 3
    """A connection, but no whole answer in time."""
    UNREACHABLE = 4
    """No connection, for another reason than that it was refused."""
    REFUSED = 5
    """Connection refused: no process listens on the port."""

    @property
    def label(self) -> str:
        """The name in metrics and in the debug state."""
        return self.name.lower()


def count_contacts(table: EndpointTable) -> Iterator[tuple[int, Contact, int]]:
    """Yield (port, contact, number of ready endpoints), ports in ascending order, without zeros."""
    ports = np.array([_port(table, row) for row in table.ready_rows.tolist()], dtype=np.int64)
    contacts = table.contact[table.ready_rows]
    for port in np.unique(ports).tolist():
        counts = np.bincount(contacts[ports == port], minlength=len(Contact)).tolist()
        for contact, count in zip(Contact, counts, strict=True):
            if count:
                yield port, contact, count


def count_missing(table: EndpointTable) -> Iterator[tuple[Signal, int, int]]:
    """Yield (signal, endpoints that lack it, endpoints) of the ready endpoints that answer, without zeros.

    An endpoint counts for a signal when its engine is configured to show it and its last page lacked it.
    """
    answering = table.ready_rows[table.contact[table.ready_rows] == Contact.ANSWERS]
    for signal in Signal:
        count = int(((table.missing[answering] & signal) != 0).sum())
        if count:
            yield signal, count, int(answering.size)


def nowhere_found(table: EndpointTable) -> tuple[str, ...]:
    """Return the names of the signals that no answering endpoint shows although its engine should."""
    return tuple(signal.label for signal, count, total in count_missing(table) if count == total)


def endpoint_health(table: EndpointTable) -> PickerHealth:
    """Return the endpoints' part of the health that the operator reads; `PickerServers` adds the proxies'."""
    settled = bool((table.contact[table.ready_rows] != Contact.UNKNOWN).all())
    return PickerHealth(ports=port_health(table), settled=settled, missing_signals=nowhere_found(table))


def port_health(table: EndpointTable) -> tuple[PortHealth, ...]:
    """Return how the ready endpoints answer, by port; empty while every contact is UNKNOWN."""
    by_port: dict[int, dict[Contact, int]] = {}
    for port, contact, count in count_contacts(table):
        by_port.setdefault(port, {})[contact] = count
    if all(counts.keys() <= {Contact.UNKNOWN} for counts in by_port.values()):
        return ()
    return tuple(
        PortHealth(
            port=port,
            total=sum(counts.values()),
            refused=counts.get(Contact.REFUSED, 0),
            unreachable=counts.get(Contact.UNREACHABLE, 0),
            silent=counts.get(Contact.SILENT, 0),
            without_metrics=counts.get(Contact.WITHOUT_METRICS, 0),
        )
        for port, counts in list(by_port.items())[:MOST_PORTS]
    )


def _port(table: EndpointTable, row: int) -> int:
    endpoint = table.endpoints[row]
    return 0 if endpoint is None else endpoint.port
