"""The node's DNS server: `python -m local_cluster.kubelet.dns --kubeconfig F --address A`.

A Service's name resolves to its cluster address, that of a headless Service to the ready endpoints of its
EndpointSlices.
"""

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from local_cluster.node.api import Access, Api
from local_cluster.node.dns import listen
from local_cluster.node.mirror import Mirror
from local_cluster.node.objects import Json, Key

_HEADLESS: Final = "None"
_SERVICE_LABEL: Final = "kubernetes.io/service-name"


def addresses_of(key: Key, services: Mapping[Key, Json], slices: Iterable[Json]) -> list[str] | None:
    """Return the addresses that a Service's name resolves to, None when there is no such Service. Pure."""
    service = services.get(key)
    if service is None:
        return None
    address = service["spec"].get("clusterIP", "")
    if address != _HEADLESS:
        return [address] if address else []
    every = bool(service["spec"].get("publishNotReadyAddresses"))
    return [
        str(address)
        for each in slices
        if each["metadata"].get("namespace") == key[0]
        and (each["metadata"].get("labels") or {}).get(_SERVICE_LABEL) == key[1]
        for endpoint in each.get("endpoints") or ()
        if every or endpoint.get("conditions", {}).get("ready", True)
        for address in endpoint["addresses"]
    ]


async def _serve(access: Access, address: str) -> None:
    async with Api(access) as api:
        services = Mirror(api, "/api/v1/services", lambda *_: None)
        slices = Mirror(api, "/apis/discovery.k8s.io/v1/endpointslices", lambda *_: None)
        async with asyncio.TaskGroup() as group:
            for mirror in (services, slices):
                group.create_task(mirror.run())
                await mirror.listed.wait()
            server = await listen(
                address, lambda key: addresses_of(key, services.items, slices.items.values())
            )
            with contextlib.closing(server):
                await asyncio.Event().wait()


async def _until_signal(access: Access, address: str) -> None:
    work = asyncio.create_task(_serve(access, address))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await work


def main() -> int:
    """Answer until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m local_cluster.kubelet.dns", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--address", required=True)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(_until_signal(Access.from_kubeconfig(given.kubeconfig), given.address))
    return 0


if __name__ == "__main__":
    sys.exit(main())
