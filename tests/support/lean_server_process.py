"""The test service on lean_grpc in a process of its own, on uvloop; prints its two ports, then serves."""

import asyncio
import sys
from pathlib import Path

import uvloop

from lean_grpc import HealthService, Limits, Server, ServerCertificate
from lean_grpc.aio.tls import CERTIFICATE, KEY, make_self_signed
from lean_service import install


async def serve(folder: Path) -> None:
    certificate, key = make_self_signed(("localhost",))
    (folder / CERTIFICATE).write_bytes(certificate)
    (folder / KEY).write_bytes(key)
    server = Server(limits=Limits())
    install(server, [])
    HealthService().install(server)
    port = await server.listen()
    tls_port = await server.listen(tls=ServerCertificate(folder).context)
    print(port, tls_port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.drain(2)


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1])))
