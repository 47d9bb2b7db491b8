"""What single endpoints' answers say of the pool's ports."""

from endpoint_picker.datalayer.contact import Contact, count_missing, endpoint_health, port_health
from endpoint_picker.datalayer.metrics_page import Signal
from endpoint_picker.datalayer.table import Endpoint, EndpointTable
from inference_api.picker_health import PortHealth


def table_of(*endpoints: tuple[str, int, Contact], unready: tuple[str, ...] = ()) -> EndpointTable:
    table = EndpointTable()
    table.replace(
        Endpoint(f"{ip}-{port}", "n", ip, port, ready=ip not in unready) for ip, port, _ in endpoints
    )
    for row in table.occupied():
        found = table.endpoints[row]
        assert found is not None
        (contact,) = [c for ip, port, c in endpoints if (ip, port) == (found.address, found.port)]
        table.contact[row] = contact
    return table


def test_ports_are_counted_apart_in_order() -> None:
    table = table_of(
        ("10.0.0.1", 8001, Contact.REFUSED),
        ("10.0.0.1", 8000, Contact.ANSWERS),
        ("10.0.0.2", 8001, Contact.UNREACHABLE),
        ("10.0.0.2", 8000, Contact.WITHOUT_METRICS),
        ("10.0.0.3", 8001, Contact.REFUSED),
        ("10.0.0.3", 8000, Contact.SILENT),
        ("10.0.0.4", 8000, Contact.UNKNOWN),
    )
    assert port_health(table) == (
        PortHealth(port=8000, total=4, silent=1, without_metrics=1),
        PortHealth(port=8001, total=3, refused=2, unreachable=1),
    )


def test_endpoints_that_are_not_ready_do_not_count() -> None:
    table = table_of(
        ("10.0.0.1", 8000, Contact.REFUSED), ("10.0.0.2", 8000, Contact.ANSWERS), unready=("10.0.0.1",)
    )
    assert port_health(table) == (PortHealth(port=8000, total=1),)


def test_nothing_is_said_before_an_endpoint_was_heard_of() -> None:
    assert port_health(table_of(("10.0.0.1", 8000, Contact.UNKNOWN))) == ()
    assert port_health(EndpointTable()) == ()


def test_a_new_tenant_of_a_row_is_unknown() -> None:
    table = table_of(("10.0.0.1", 8000, Contact.REFUSED))
    table.replace([Endpoint("other", "n", "10.0.0.9", 8000)])
    assert table.contact[table.occupied()].tolist() == [Contact.UNKNOWN]


def test_the_column_grows_with_the_table() -> None:
    table = EndpointTable()
    table.replace(Endpoint(f"p{at}", "n", f"10.0.0.{at}", 8000) for at in range(100))
    table.contact[table.ready_rows] = Contact.REFUSED
    assert port_health(table) == (PortHealth(port=8000, total=100, refused=100),)


def test_a_signal_is_missing_where_an_answering_endpoint_lacks_it_and_nowhere_found_where_all_do() -> None:
    table = table_of(
        ("10.0.0.1", 8000, Contact.ANSWERS),
        ("10.0.0.2", 8000, Contact.ANSWERS),
        ("10.0.0.3", 8000, Contact.REFUSED),
    )
    first, second, third = table.ready_rows.tolist()
    table.missing[first] = Signal.KV_USAGE | Signal.BLOCKS
    table.missing[second] = Signal.KV_USAGE
    table.missing[third] = Signal.WAITING
    assert list(count_missing(table)) == [(Signal.KV_USAGE, 2, 2), (Signal.BLOCKS, 1, 2)]
    assert endpoint_health(table).missing_signals == ("kv_usage",)
    table.replace([Endpoint("10.0.0.2-8000", "n", "10.0.0.2", 8000)])
    assert endpoint_health(table).missing_signals == ("kv_usage",)
    table.replace([Endpoint("other", "n", "10.0.0.9", 8000)])
    assert endpoint_health(table).missing_signals == ()
