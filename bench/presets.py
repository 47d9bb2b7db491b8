"""The engine's presets against published figures: one JSON line a figure on stdout, in simulated time.

`value` is the simulated figure over the published one, minus 1. The goal is 15 %: published figures of one
model and accelerator differ by more. With --table it prints the table of docs/simulator.md instead.
Run: python bench/presets.py
"""

import json
import sys

from model_server_sim.calibration import FIGURES, table

GOAL = 0.15


def main() -> None:
    """Print all figures."""
    if sys.argv[1:] == ["--table"]:
        print(table(), end="")
        return
    for one in FIGURES:
        load, value = one.load, one.deviation()
        line = {
            "figure": f"{one.preset} {one.field} c={load.concurrency} {load.prompt}/{load.output}",
            "value": round(value, 3), "unit": "deviation", "goal": GOAL, "ok": abs(value) <= GOAL,
            "published": one.published, "software": one.software,
        }  # fmt: skip
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
