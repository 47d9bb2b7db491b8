"""Instructions of a request in the picker's process, by shape and part: `bench/replay.py` under callgrind.

    python bench/instructions.py                     this tree
    python bench/instructions.py --against DIR       and another checkout, with the ratio

Counts do not depend on what else the machine does, and two runs differ by less than 0.3 %: a change of one
per cent is seen in a minute. They are not time: a request whose data is in no cache takes longer for each.
Needs valgrind with its headers, and a C compiler. Prints one JSON line a figure, in thousands.
"""

import argparse
import asyncio
import ctypes
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import paired
import replay

_SOURCE: Final = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; }
void toggle(void) { CALLGRIND_TOGGLE_COLLECT; }
void zero(void) { CALLGRIND_ZERO_STATS; }
void dump(const char *name) { CALLGRIND_DUMP_STATS_AT(name); }
"""
_LIBRARY: Final = "HEADROOM_BENCH_CALLGRIND"
_NAME: Final = re.compile(r"Client Request: (\S+) (\S+) (\d+)")
_TOTAL: Final = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)
WAVES: Final = 6


async def counted(library: Any) -> None:
    """Run each shape in each driver, and have callgrind write a file for each."""
    running, answers = replay.drivers(), {shape.name: replay.Answers(shape) for shape in replay.SHAPES}
    for driver in running.values():
        for shape in replay.SHAPES:
            driver.wave(shape, answers[shape.name])
            driver.wave(shape, answers[shape.name])
    gc.collect()
    gc.freeze()
    library.start()
    replay.METER.read = lambda: float(library.toggle() and 0)
    for name, driver in running.items():
        for shape in replay.SHAPES:
            driver.wave(shape, answers[shape.name])
            library.zero()
            waves = max(1, WAVES // shape.weight)
            for _ in range(waves):
                driver.wave(shape, answers[shape.name])
            library.dump(f"{name} {shape.name} {waves * replay.WAVE}".encode())


def measure(tree: Path, folder: Path) -> dict[tuple[str, str], float]:
    """Return thousands of instructions a request, by driver and shape."""
    library = folder / "callgrind.so"
    if not library.exists():
        (folder / "callgrind.c").write_text(_SOURCE)
        command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(folder / "callgrind.c")]
        subprocess.run(command, check=True)
    here = str(Path(__file__).parent)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([paired.package_path(tree), here]),
        "PYTHONHASHSEED": "0",
        paired.TREE_VARIABLE: str(tree),
        _LIBRARY: str(library),
    }
    with tempfile.TemporaryDirectory(dir=folder) as out:
        subprocess.run(
            [
                *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no", "-q"),
                *(f"--callgrind-out-file={out}/out", sys.executable, __file__, "--worker"),
            ],
            env=environment,
            check=True,
            stderr=subprocess.DEVNULL,
        )
        texts = [file.read_text(errors="replace") for file in Path(out).iterdir()]
    found = {}
    for text in texts:
        name, total = _NAME.search(text), _TOTAL.search(text)
        if name and total:
            found[name[1], name[2]] = int(total[1]) / int(name[3]) / 1000
    return found


def main() -> None:
    """Measure one tree or two, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--worker", action="store_true", help="run under callgrind")
    given = parser.parse_args()
    if given.worker:
        asyncio.run(counted(ctypes.CDLL(os.environ[_LIBRARY])))
        return
    with tempfile.TemporaryDirectory() as folder:
        this = measure(paired.TREE, Path(folder))
        other = measure(given.against.resolve(), Path(folder)) if given.against else {}
    for shape in replay.SHAPES:
        counts, others = _parts(this, shape.name), _parts(other, shape.name)
        for part, count in counts.items():
            line: dict[str, Any] = {"figure": f"instructions_{shape.name}", "part": part}
            line |= {"value": round(count, 1), "unit": "thousand"}
            if others:
                line |= {"other": round(others[part], 1), "ratio": round(count / others[part], 3)}
            print(json.dumps(line))


def _parts(counts: dict[tuple[str, str], float], shape: str) -> dict[str, float]:
    if not counts:
        return {}
    whole, calls, exchange = (counts[driver, shape] for driver in ("whole", "calls", "exchange"))
    return {"whole": whole, "transport": whole - calls, "decision": calls - exchange, "exchange": exchange}


if __name__ == "__main__":
    main()
