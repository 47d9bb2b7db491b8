"""`headroom explain POOL [REQUEST_ID]`; also `kubectl headroom explain`."""

import argparse
import ipaddress
import json
from typing import TypeAlias

from headroom_cli import picker_pages
from headroom_cli.explain import tables
from headroom_cli.picker_pages import PickerPageError

Groups: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

_DESCRIPTION = (
    "Show the newest decisions of a pool's picker, or say of one request why it went where it did: the "
    "candidates with their signals, what each filter cut, every score (raw = weighted), the choice and its "
    "fallbacks. The request's id is its header x-request-id. Reads the pod through the API server, which "
    "takes the right to get pods/proxy."
)


def add_commands(groups: Groups) -> None:
    """Add the command `explain`."""
    command = groups.add_parser(
        "explain", help="why a pool's requests went where they did", description=_DESCRIPTION
    )
    add = command.add_argument
    add("pool", metavar="POOL", nargs="?", default="", help="the InferencePool; not needed with --address")
    add(
        "request_id",
        metavar="REQUEST_ID",
        nargs="?",
        default="",
        help="without it, list the newest decisions",
    )
    add("--limit", type=int, help="list this many (default 20, at most 500)")
    add("--endpoint", default="", metavar="IP:PORT", help="list only decisions that chose this endpoint")
    add("--refused", action="store_true", help="list only refusals")
    add("-o", "--output", choices=("table", "json"), default="table")
    picker_pages.add_flags(command)
    command.set_defaults(run=explain)


def explain(given: argparse.Namespace) -> int:
    """Print the decisions; return 0. Raises PickerPageError."""
    if given.address and given.pool and not given.request_id:
        # With an address the one argument is the request: `headroom explain --address HOST:PORT REQUEST_ID`.
        given.pool, given.request_id = "", given.pool
    answers = _ask(given)
    if given.output == "json":
        print(json.dumps([{"picker": name, **page} for name, page in answers], indent=2))
        return 0
    found = [(decision, name) for name, page in answers for decision in page["decisions"]]
    found.sort(key=lambda pair: float(pair[0]["ageSeconds"]))
    if given.request_id and not found:
        raise PickerPageError(answers[0][1]["note"])
    if given.request_id:
        print("\n\n\n".join(tables.explanation(decision, picker) for decision, picker in found))
    elif found:
        print(tables.listing([decision for decision, _ in found]))
    else:
        print("No such decision is kept.")
    return 0


def _ask(given: argparse.Namespace) -> list[tuple[str, picker_pages.Object]]:
    """Return each picker's name and page."""
    query: dict[str, str] = {}
    if given.request_id:
        if given.limit is not None or given.endpoint or given.refused:
            raise PickerPageError(
                "--limit, --endpoint and --refused are for the list; leave out the request's id"
            )
        query["request_id"] = given.request_id
    else:
        if given.limit is not None and not 0 < given.limit <= 500:
            raise PickerPageError("--limit is a number from 1 to 500")
        query |= {"limit": str(given.limit)} if given.limit is not None else {}
        if given.endpoint and not _is_endpoint(given.endpoint):
            raise PickerPageError(f"--endpoint {given.endpoint}: write IP:PORT, as the list shows it")
        query |= {"endpoint": given.endpoint} if given.endpoint else {}
        query |= {"refused": "true"} if given.refused else {}
    return [
        (each.name, each.page("/debug/explain", "decisions", query)) for each in picker_pages.pickers(given)
    ]


def _is_endpoint(text: str) -> bool:
    address, _, port = text.rpartition(":")
    try:
        ipaddress.ip_address(address.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return port.isascii() and port.isdigit()
