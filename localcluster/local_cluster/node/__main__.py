"""The node's process: `python -m local_cluster.node --kubeconfig F --directory D --logs L --images F`.

Started by the supervisor; ends with code 2 and one line on standard error when it cannot run containers.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from local_cluster.errors import LocalClusterError
from local_cluster.node.api import Access
from local_cluster.node.node import Node
from local_cluster.state import read_images


async def _serve(node: Node) -> None:
    """Run the node until SIGTERM or SIGINT."""
    work = asyncio.create_task(node.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        logging.getLogger(__name__).info("stopped")


def main() -> int:
    """Run the node of a local cluster."""
    parser = argparse.ArgumentParser(prog="python -m local_cluster.node", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--directory", type=Path, required=True, help="for the files of pods; emptied")
    parser.add_argument("--logs", type=Path, required=True, help="for the logs of containers")
    parser.add_argument(
        "--images", type=Path, required=True, help="JSON file: repository -> argv, environment"
    )
    parser.add_argument("--names", choices=("dns", "hosts"), default="dns", help="how Service names resolve")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    os.umask(0o022)
    node = Node(
        Access.from_kubeconfig(given.kubeconfig),
        given.directory,
        given.logs,
        read_images(given.images),
        use_dns=given.names == "dns",
    )
    try:
        asyncio.run(_serve(node))
    except LocalClusterError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
