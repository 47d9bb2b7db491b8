"""A flame graph of one exchange of `bench/replay.py`, by bytecode instructions of the interpreter.

    python bench/flame.py chat_1k > docs/plots/picker-request.svg

Each box is a Python function under its caller, as wide as the bytecode instructions that run in it and below
it. Counting them is exact, whatever else the machine does; what C code does in a call is not in them.
"""

import argparse
import asyncio
import sys
from collections import Counter
from types import FrameType
from typing import Any, Final
from xml.sax.saxutils import escape

import replay

_WIDTH: Final = 1200
_ROW: Final = 17
#: Narrower boxes are left out, in pixels.
_LEAST: Final = 0.6
_COLOURS: Final = {"lean_grpc": "#8fb8de", "ext_proc": "#9ccc9c", "endpoint_picker": "#f2c078"}

Stack = tuple[str, ...]


class Tracer:
    """Counts bytecode instructions by stack, between two reads of the meter."""

    def __init__(self) -> None:
        self.counts: Counter[Stack] = Counter()
        self._on = False

    def read(self) -> float:
        """Switch the tracing on or off."""
        self._on = not self._on
        sys.settrace(self._called if self._on else None)
        return 0.0

    def _called(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        stack = _stack(frame)

        def local(_frame: FrameType, event: str, _argument: Any) -> Any:
            if event == "opcode":
                self.counts[stack] += 1
            return local

        return local


def _stack(frame: FrameType | None) -> Stack:
    names: list[str] = []
    while frame is not None and not frame.f_code.co_filename.endswith("replay.py"):
        module = str(frame.f_globals.get("__name__", ""))
        names.append(f"{module}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return tuple(reversed(names))


async def traced(name: str, waves: int) -> tuple[Counter[Stack], int]:
    """Return the counts of some waves of a shape, and the number of exchanges."""
    shape = next(each for each in replay.SHAPES if each.name == name)
    driver, answers, tracer = replay.drivers()["whole"], replay.Answers(shape), Tracer()
    for _ in range(5):
        driver.wave(shape, answers)
    replay.METER.read = tracer.read
    for _ in range(waves):
        driver.wave(shape, answers)
    return tracer.counts, waves * replay.WAVE


def drawn(counts: Counter[Stack], exchanges: int, title: str) -> str:
    """Return the picture."""
    sums: Counter[Stack] = Counter()
    for stack, count in counts.items():
        for depth in range(1, len(stack) + 1):
            sums[stack[:depth]] += count
    total, deepest = sum(counts.values()), max(map(len, counts))
    height = (deepest + 2) * _ROW
    starts: dict[Stack, float] = {(): 0.0}
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}">',
        "<style>text { font: 11px sans-serif; }</style>",
        f'<text x="4" y="13">{escape(title)}: {total / exchanges:,.0f} bytecode instructions</text>',
    ]
    for stack in sorted(sums, key=lambda each: (len(each), each)):
        start = starts[stack[:-1]]
        width = sums[stack] / total * _WIDTH
        starts[stack], starts[stack[:-1]] = start, start + width
        if width < _LEAST:
            continue
        colour = _COLOURS.get(stack[-1].partition(".")[0], "#d0d0d0")
        y = len(stack) * _ROW
        label = stack[-1].rpartition(".")[2] if width < 160 else ".".join(stack[-1].split(".")[-2:])
        shown = label[: int(width / 6)]
        text = f'<text x="{start + 2:.1f}" y="{y + 12}">{escape(shown)}</text>' if width > 20 else ""
        share = f"{stack[-1]}: {sums[stack] / exchanges:,.0f} ({sums[stack] / total:.1%})"
        out.append(
            f'<g><title>{escape(share)}</title><rect x="{start:.1f}" y="{y}" width="{width:.1f}" '
            f'height="{_ROW - 1}" fill="{colour}"/>{text}</g>'
        )
    return "\n".join([*out, "</svg>"])


def main() -> None:
    """Print the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("shape", choices=[shape.name for shape in replay.SHAPES])
    given = parser.parse_args()
    counts, exchanges = asyncio.run(traced(given.shape, 5))
    print(drawn(counts, exchanges, f"{given.shape}, one exchange"))


if __name__ == "__main__":
    main()
