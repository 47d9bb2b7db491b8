"""`headroom top POOL`; also `kubectl headroom top`."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import TypeAlias

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from headroom_cli import picker_pages
from headroom_cli.picker_pages import Object, Picker, PickerPageError
from headroom_cli.text_table import printable
from headroom_cli.top.frame import Frame, frame_of, plain

Groups: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Pages: TypeAlias = list[tuple[str, Object, Object]]
"""Name, /debug/state and /debug/queue of each picker."""

_DESCRIPTION = (
    "Show what a pool's pickers do now: the endpoints with their load, the queue by band and by tenant, "
    "saturation, prefix hits and the predictor's state, anew every second until control-C. Without a "
    "terminal one frame is printed. Reads the pods through the API server, which takes the right to get "
    "pods/proxy."
)


def add_commands(groups: Groups) -> None:
    """Add the command `top`."""
    command = groups.add_parser(
        "top", help="a pool's endpoints and queue, in the terminal", description=_DESCRIPTION
    )
    add = command.add_argument
    add("pool", metavar="POOL", nargs="?", default="", help="the InferencePool; not needed with --address")
    add("--once", action="store_true", help="print one frame as plain text")
    add("--interval", type=float, default=1.0, metavar="SECONDS", help="time between two frames (default 1)")
    add("-o", "--output", choices=("table", "json"), default="table", help="json: the pages, once")
    picker_pages.add_flags(command)
    command.set_defaults(run=top)


def top(given: argparse.Namespace) -> int:
    """Show the pool until control-C, or once; return 0. Raises PickerPageError."""
    if not 0.1 <= given.interval <= 3600:
        raise PickerPageError("--interval is a number of seconds from 0.1 to 3600")
    pickers = picker_pages.pickers(given)
    pages = _pages(pickers)
    if given.output == "json":
        answers = [{"picker": name, "state": state, "queue": queue} for name, state, queue in pages]
        print(json.dumps(answers, indent=2))
    elif given.once or not sys.stdout.isatty():
        print("\n\n\n".join(plain(frame) for frame in _frames(pages)))
    else:
        _watch(given, pickers, pages)
    return 0


def _watch(given: argparse.Namespace, pickers: Sequence[Picker], pages: Pages) -> None:
    try:
        with Live(drawn(_frames(pages)), screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(given.interval)
                try:
                    pages = _pages(pickers)
                    live.update(drawn(_frames(pages)), refresh=True)
                except PickerPageError as error:
                    live.update(drawn(_frames(pages), str(error)), refresh=True)
                    pickers = _found_again(given, pickers)
    except KeyboardInterrupt:
        return


def _found_again(given: argparse.Namespace, pickers: Sequence[Picker]) -> Sequence[Picker]:
    """Return the pool's present pickers; the known ones while they cannot be found."""
    try:
        return picker_pages.pickers(given)
    except PickerPageError:
        return pickers


def _pages(pickers: Sequence[Picker]) -> Pages:
    return [
        (each.name, each.page("/debug/state", "router"), each.page("/debug/queue", "enabled"))
        for each in pickers
    ]


def _frames(pages: Pages) -> list[Frame]:
    try:
        return [frame_of(*each) for each in pages]
    except (KeyError, TypeError, AttributeError) as error:
        raise PickerPageError(
            f"a picker's pages lack {error}; are this command and the picker of one version?"
        ) from error


def drawn(frames: Sequence[Frame], complaint: str = "") -> RenderableType:
    """Return the frames for a terminal."""
    parts: list[RenderableType] = []
    if complaint:
        parts += [Text(printable(complaint), style="bold red"), Text("")]
    for frame in frames:
        facts = Table.grid(padding=(0, 2))
        for key, value in frame.facts:
            facts.add_row(Text(key, style="bold"), Text(printable(value)))
        parts.append(facts)
        for section in frame.sections:
            head, *rows = section.rows
            drawn = Table(box=None, title=f"\n{section.title}", title_justify="left", title_style="bold")
            for name in head:
                drawn.add_column(name, header_style="dim", no_wrap=True)
            for row in rows:
                drawn.add_row(*[escape(printable(text)) for text in row])
            parts.append(drawn)
            if section.note:
                parts.append(Text(f" {section.note}", style="dim"))
        parts.append(Text(""))
    return Group(*parts)
