"""Cost of many pools to the operator: memory, open files, time until all are made, time to heal a ConfigMap.

Runs the operator against a real API server of its own. `--pools 300` pools over `--namespaces 30` namespaces;
their pods are never scheduled. A JSON line a figure.
"""

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from operator_cluster import Cluster, OperatorProcess, Space, eventually, pool, running_cluster


def main() -> None:
    """Start an API server, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pools", type=int, default=300)
    parser.add_argument("--namespaces", type=int, default=30)
    parser.add_argument("--resync-interval", type=int, default=60)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, running_cluster(Path(directory)) as cluster:
        measure(cluster, given.pools, given.namespaces, given.resync_interval)


def measure(cluster: Cluster, pools: int, namespaces: int, interval: int) -> None:
    """Create the pools, delete eight ConfigMaps, and print memory, CPU, files and times."""
    spaces = [cluster.space() for _ in range(namespaces)]
    process = OperatorProcess(
        cluster.kubeconfig(), cluster.directory / "operator.log", f"--resync-interval={interval}s"
    )
    try:
        process.address()
        begun = rss(process)
        began = time.monotonic()

        def make(number: int) -> None:
            spaces[number % namespaces].create("pool", pool(f"pool-{number}"))

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(make, range(pools)))
        eventually(lambda: made(spaces) == pools, "all pickers made", 1800)
        show("seconds until all pickers are made", time.monotonic() - began)
        time.sleep(interval)
        busy = cpu(process)
        waits = [heal(spaces[turn % namespaces], f"pool-{turn}-epp-config") for turn in range(8)]
        time.sleep(max(0.0, interval - sum(waits)))
        show("CPU share with no changes but eight", (cpu(process) - busy) / interval)
        show("seconds until a deleted ConfigMap is back, longest of eight", max(waits))
        show("MB resident before any pool", begun)
        show("MB resident", rss(process))
        show("open files", len(list(Path(f"/proc/{process.pid}/fd").iterdir())))
        show("log lines above INFO", sum(line["level"] != "INFO" for line in process.lines()))
    finally:
        process.stop(60.0)


def show(what: str, value: float) -> None:
    """Print a figure."""
    print(json.dumps({"figure": what, "value": round(value, 3)}), flush=True)


def made(spaces: list[Space]) -> int:
    """Return how many pools have a Deployment."""
    time.sleep(1.0)
    return sum(len(space.all("deployment")) for space in spaces)


def heal(space: Space, name: str) -> float:
    """Delete a ConfigMap; return after how many seconds it is back."""
    before = (space.get("config", name) or {})["metadata"]["uid"]
    began = time.monotonic()
    space.delete("config", name)
    eventually(
        lambda: (space.get("config", name) or {"metadata": {"uid": before}})["metadata"]["uid"] != before
    )
    return time.monotonic() - began


def rss(process: OperatorProcess) -> float:
    """Return the process's resident memory in MB."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def cpu(process: OperatorProcess) -> float:
    """Return the seconds of CPU that the process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


if __name__ == "__main__":
    main()
