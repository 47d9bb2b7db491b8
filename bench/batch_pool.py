"""2,000 batch jobs at priority -10 beside a chat with an SLO, on a simulated pool with flow control.

    python bench/batch_pool.py                     one JSON line a figure
    python bench/batch_pool.py --seeds 3 --load 4

Eight servers, each with `--slots` slots (`maxConcurrency` of concurrency-detector). The chat and the client
are those of tests/support/chat_and_batch.py.

Chat's goodput is the share of its requests within their SLO, with the jobs beside it against the same chat
alone. A slot is free of chat unless a chat request is in flight on it or waits in the picker for it; the
share of free slots that jobs use is taken every quarter of a second while jobs are left that were not sent.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from chat_and_batch import Beside, compare

SERVERS: Final = 8
JOBS: Final = 2000


def show(name: str, value: float, unit: str, goal: str, *, ok: bool) -> None:
    """Print a figure."""
    line = {"figure": name, "value": round(value, 4), "unit": unit, "goal": goal, "ok": ok}
    print(json.dumps(line), flush=True)


def main() -> None:
    """Make the runs and print the figures, the worst of the seeds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--load", type=float, default=2.5, help="of the chat; its knee is at 8.5")
    parser.add_argument("--slots", type=int, default=64, help="of one server")
    parser.add_argument("--seconds", type=float, default=110.0)
    given = parser.parse_args()
    pool = Beside(servers=SERVERS, load=given.load, slots=given.slots, jobs=JOBS, seconds=given.seconds)
    made = [compare(pool, seed) for seed in range(1, given.seeds + 1)]
    lost, used = max(one.lost for one in made), min(one.used for one in made)
    served = min(one.served for one in made)
    show("chat goodput alone", min(one.alone for one in made), "share", "", ok=True)
    show("chat goodput lost beside the jobs", lost, "share", "<= 0.02", ok=lost <= 0.02)
    show("free slots used by jobs", used, "share", ">= 0.9", ok=used >= 0.9)
    show("jobs served", served, "jobs", f"= {JOBS}", ok=served == JOBS)
    show("last job served after", max(one.last_s for one in made), "s", "", ok=True)


if __name__ == "__main__":
    main()
