"""`headroom explain POOL [REQUEST_ID]`, and the same as `kubectl headroom explain`."""

import argparse
import ipaddress
import json
import sys
from collections.abc import Sequence
from typing import TypeAlias

from headroom_cli.explain import picker_pages, tables
from headroom_cli.explain.failure import ExplainError
from inference_api.release import release_version

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
    add("--address", default="", metavar="HOST:PORT", help="a picker's metrics port, in place of the cluster")
    add("-n", "--namespace", default="", help="the pool's; default: that of the kubeconfig's context")
    add("--context", default="", help="context of the kubeconfig")
    add("--kubeconfig", default="", help="kubeconfig file; default: as for kubectl")
    command.set_defaults(run=explain)


def explain(given: argparse.Namespace) -> int:
    """Print the decisions; return 0. Raises ExplainError."""
    if given.address and given.pool and not given.request_id:
        # With an address the one argument is the request: `headroom explain --address HOST:PORT REQUEST_ID`.
        given.pool, given.request_id = "", given.pool
    answers = _ask(given)
    if given.output == "json":
        print(json.dumps([{"picker": each.picker, **each.page} for each in answers], indent=2))
        return 0
    found = [(decision, each.picker) for each in answers for decision in each.page["decisions"]]
    found.sort(key=lambda pair: float(pair[0]["ageSeconds"]))
    if given.request_id and not found:
        raise ExplainError(answers[0].page["note"])
    if given.request_id:
        print("\n\n\n".join(tables.explanation(decision, picker) for decision, picker in found))
    elif found:
        print(tables.listing([decision for decision, _ in found]))
    else:
        print("No such decision is kept.")
    return 0


def _ask(given: argparse.Namespace) -> list[picker_pages.Answer]:
    query: dict[str, str] = {}
    if given.request_id:
        if given.limit is not None or given.endpoint or given.refused:
            raise ExplainError(
                "--limit, --endpoint and --refused are for the list; leave out the request's id"
            )
        query["request_id"] = given.request_id
    else:
        if given.limit is not None and not 0 < given.limit <= 500:
            raise ExplainError("--limit is a number from 1 to 500")
        query |= {"limit": str(given.limit)} if given.limit is not None else {}
        if given.endpoint and not _is_endpoint(given.endpoint):
            raise ExplainError(f"--endpoint {given.endpoint}: write IP:PORT, as the list shows it")
        query |= {"endpoint": given.endpoint} if given.endpoint else {}
        query |= {"refused": "true"} if given.refused else {}
    if given.address:
        return picker_pages.of_address(given.address, query)
    if not given.pool:
        raise ExplainError("name the InferencePool, or a picker by --address HOST:PORT")
    flags = [
        f"--{name}={value}"
        for name in ("namespace", "context", "kubeconfig")
        if (value := getattr(given, name))
    ]
    return picker_pages.of_pool(picker_pages.Kubectl(flags), given.pool, query)


def _is_endpoint(text: str) -> bool:
    address, _, port = text.rpartition(":")
    try:
        ipaddress.ip_address(address.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return port.isascii() and port.isdigit()


def plugin(argv: Sequence[str] | None = None) -> int:
    """Run `kubectl-headroom`, which kubectl finds on the path and runs for `kubectl headroom`."""
    parser = argparse.ArgumentParser(
        prog="kubectl headroom", description="Headroom's inference pools.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=release_version())
    add_commands(parser.add_subparsers(required=True, metavar="COMMAND"))
    given = parser.parse_args(argv)
    try:
        return int(given.run(given))
    except ExplainError as error:
        print(f"kubectl headroom: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        sys.stderr.close()  # else the interpreter would complain there that it cannot flush standard output
        return 1
    except KeyboardInterrupt:
        return 130
