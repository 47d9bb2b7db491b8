"""Command `headroom-batch`."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final

from batch_subscriber.errors import BatchError, ConfigurationError
from inference_api.release import release_version

#: Command: module of `batch_subscriber.commands`, and what the help says.
COMMANDS: Final[Mapping[str, str]] = {
    "run": "send the jobs of a queue to the gateway",
    "dead": "list, show, replay or drop jobs that are not tried any more",
    "plan": "say when the backlog will be done, against a deadline and the queue's retention",
    "submit": "hand a file of requests to the API, watch it, and fetch its files",
    "serve": "serve files and batches over HTTP, as OpenAI's API does",
}


def main() -> None:
    """Run a command; exit with its status, 2 for a bad command line or settings, 1 for a failure."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command line; return its exit status."""
    parser = argparse.ArgumentParser(prog="headroom-batch", description="Work that can wait.")
    parser.add_argument("--version", action="version", version=release_version())
    commands = parser.add_subparsers(dest="command", metavar="|".join(COMMANDS))
    # Only the module of the command that runs is imported, since each needs libraries of its own.
    chosen = next((one for one in arguments if one in COMMANDS), None)
    modules = {}
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name == chosen:
            modules[name] = import_module(f"batch_subscriber.commands.{name}")
            modules[name].add_arguments(command)
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if given.command is None:
        parser.error(f"name a command: {', '.join(COMMANDS)}")
    try:
        return int(modules[given.command].run(given))
    except ConfigurationError as wrong:
        print(f"headroom-batch: {wrong}", file=sys.stderr)
        return 2
    except BatchError as failure:
        print(f"headroom-batch: {failure}", file=sys.stderr)
        return 1
