"""SIGTERM to a busy operator at random moments: reports each time that it does not end in time with 0."""

import random
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from operator_cluster import Cluster, OperatorProcess, Space, pool

#: Children that exist before the operator starts, so that its first lists bring many events at once.
_OBJECTS = 800
_POOLS = 12
#: Seconds in which an operator must have ended, far less than a pod's grace period of 30.
_GRACE = 15.0
#: Latest moment of the signal, seconds after the operator's health port answers.
_WITHIN = 3.0


@contextmanager
def busy_space(cluster: Cluster) -> Iterator[Space]:
    """Yield a namespace with pools and many children, some of which are changed all the time."""
    space = cluster.space()
    for number in range(_POOLS):
        space.create("pool", pool(f"pool-{number}"))

    def child(number: int) -> None:
        name = f"pool-{number % _POOLS}"
        labels = {"app.kubernetes.io/managed-by": "headroom"}
        metadata = {"name": f"extra-{number}", "labels": labels, "annotations": {"example.com/pool": name}}
        space.create("config", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(child, range(_OBJECTS)))
    over = threading.Event()

    def churn(first: int) -> None:
        number = first
        while not over.is_set():
            space.merge("config", f"extra-{number % _OBJECTS}", {"data": {"turn": str(number)}})
            space.merge("pool", f"pool-{number % _POOLS}", {"metadata": {"labels": {"turn": str(number)}}})
            number += 7

    churners = [threading.Thread(target=churn, args=(first,), daemon=True) for first in range(2)]
    for thread in churners:
        thread.start()
    try:
        yield space
    finally:
        over.set()
        for thread in churners:
            thread.join(30)


def terminate_at_random(cluster: Cluster, times: int, seed: int) -> list[str]:
    """Start an operator `times` times and end it at a random moment; return a line for each failure."""
    moments, wrong = random.Random(seed), []
    with busy_space(cluster) as space:
        config = cluster.kubeconfig()
        for turn in range(times):
            log = cluster.directory / f"terminated-{turn % 4}.log"
            process = OperatorProcess(config, log, f"--namespaces={space.name}", "--resync-interval=2s")
            process.address()
            time.sleep(moments.uniform(0.0, _WITHIN))
            began = time.monotonic()
            try:
                status = process.stop(_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                wrong.append(f"turn {turn}: not ended {_GRACE:g} s after SIGTERM")
                continue
            if status != 0:
                wrong.append(f"turn {turn}: status {status} after {time.monotonic() - began:.1f} s")
    return wrong
