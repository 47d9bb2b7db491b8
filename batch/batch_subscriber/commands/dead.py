"""`headroom-batch dead list|show|replay|drop`: the jobs that are not tried any more."""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Final

from batch_subscriber.jobs import DeadLetter
from batch_subscriber.opening import open_dead_letters, open_queue
from batch_subscriber.queues.interface import DeadLetters, JobQueue

#: Letters of one call to the queue.
_PAGE: Final = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands and their flags."""
    parser.add_argument("--queue", required=True, help="URL of the queue, as for `run`")
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|show|replay|drop")
    listing = actions.add_parser("list", help="a line for each letter: key, time, cause, attempts, job")
    listing.add_argument("--json", action="store_true", help="a JSON object for each letter, without bodies")
    show = actions.add_parser("show", help="one letter with its request and failures, as JSON")
    show.add_argument("key")
    for action, text in (
        ("replay", "put the jobs back into the queue, without attempts and deadline"),
        ("drop", "remove letters for good"),
    ):
        chosen = actions.add_parser(action, help=text)
        chosen.add_argument("keys", nargs="*", metavar="KEY")
        chosen.add_argument("--all", action="store_true", help="all letters")
        chosen.add_argument("--cause", help="with --all: those of one cause, e.g. exhausted")


def run(arguments: argparse.Namespace) -> int:
    """Carry the sub-command out. Exit status: 0; 1 when a key names no letter, or a letter no job."""
    return asyncio.run(_run(arguments))


async def _run(arguments: argparse.Namespace) -> int:
    dead = await open_dead_letters(arguments.queue)
    try:
        match arguments.action:
            case "list":
                return await _list(dead, as_json=arguments.json)
            case "show":
                return await _show(dead, arguments.key)
            case "drop":
                return await _drop(dead, arguments)
            case _:
                queue = await open_queue(arguments.queue)
                try:
                    return await _replay(dead, queue, arguments)
                finally:
                    await queue.close()
    finally:
        await dead.close()


async def _every(dead: DeadLetters) -> AsyncIterator[DeadLetter]:
    after = ""
    while page := await dead.letters(_PAGE, after):
        for letter in page:
            yield letter
        after = page[-1].key


async def _list(dead: DeadLetters, *, as_json: bool) -> int:
    async for letter in _every(dead):
        if as_json:
            print(json.dumps(_summary(letter), ensure_ascii=False))
        else:
            values = _summary(letter)
            print(
                f"{letter.key}  {values['at']}  {letter.cause.value:<10} {values['attempts']:>3} attempts  "
                f"{values['id'] or '(no job)'}  {letter.detail}"
            )
    return 0


def _summary(letter: DeadLetter) -> dict[str, Any]:
    job = letter.job
    return {
        "key": letter.key,
        "at": datetime.fromtimestamp(letter.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "cause": letter.cause.value,
        "detail": letter.detail,
        "deliveries": letter.deliveries,
        "id": "" if job is None else job.id,
        "generation": "" if job is None else job.generation,
        "group": "" if job is None else job.group,
        "attempts": 0 if job is None else job.attempts,
    }


async def _show(dead: DeadLetters, key: str) -> int:
    letter = await dead.letter(key)
    if letter is None:
        return _missing(key)
    values = _summary(letter)
    job = letter.job
    if job is None:
        values["raw"] = letter.raw.decode(errors="backslashreplace")
    else:
        values["path"] = job.path
        # Values of headers may be secrets.
        values["headers"] = [name for name, _ in job.headers]
        values["body"] = job.body.decode(errors="backslashreplace")
        values["failures"] = [
            {"at": datetime.fromtimestamp(at, UTC).isoformat(), "cause": cause} for at, cause in job.failures
        ]
    print(json.dumps(values, ensure_ascii=False, indent=2))
    return 0


async def _chosen(dead: DeadLetters, arguments: argparse.Namespace) -> AsyncIterator[DeadLetter | str]:
    """Yield the letters that a command line names, and the keys that name none."""
    for key in arguments.keys:
        yield await dead.letter(key) or key
    if arguments.all:
        async for letter in _every(dead):
            if arguments.cause in (None, letter.cause.value):
                yield letter


async def _replay(dead: DeadLetters, queue: JobQueue, arguments: argparse.Namespace) -> int:
    status = done = 0
    async for letter in _chosen(dead, arguments):
        if isinstance(letter, str):
            status = _missing(letter)
        elif letter.job is None:
            print(f"{letter.key} is no job; drop it, and put a right one", file=sys.stderr)
            status = 1
        else:
            # A kill between the two calls leaves the letter: replayed again, it is the same generation.
            await queue.put([letter.job.replayed(time.time())])
            await dead.drop(letter.key)
            done += 1
    print(f"{done} put back")
    return status


async def _drop(dead: DeadLetters, arguments: argparse.Namespace) -> int:
    status = done = 0
    async for letter in _chosen(dead, arguments):
        if isinstance(letter, str):
            status = _missing(letter)
        else:
            done += await dead.drop(letter.key)
    print(f"{done} dropped")
    return status


def _missing(key: str) -> int:
    print(f"there is no dead letter {key}", file=sys.stderr)
    return 1
