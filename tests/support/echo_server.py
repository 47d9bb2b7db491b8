"""A model server that shows what it received: it answers with the body's digest, or streams the body back."""

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

PIECES = 10


class EchoServer:
    """Counts its requests and remembers the last one's headers."""

    def __init__(self) -> None:
        self.address = ""
        self.requests = 0
        self.headers: dict[str, str] = {}

    async def get(self, request: web.Request) -> web.Response:
        self.requests += 1
        return web.json_response({"server": self.address})

    async def post(self, request: web.Request) -> web.StreamResponse:
        """Answer a digest; for a streaming request the whole body as server-sent events and usage."""
        self.requests += 1
        self.headers = {key.lower(): value for key, value in request.headers.items()}
        body = await request.read()
        digest = hashlib.sha256(body).hexdigest()
        usage = {"prompt_tokens": len(body), "completion_tokens": PIECES}
        if b'"stream": true' not in body[:200]:
            return web.json_response({"server": self.address, "digest": digest, "usage": usage})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        size = -(-len(body) // PIECES)
        for at in range(0, len(body), size):
            event = json.dumps({"text": body[at : at + size].decode("latin-1")})
            await response.write(f"data: {event}\n\n".encode())
        await response.write(b"data: " + json.dumps({"usage": usage}).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


@asynccontextmanager
async def running(host: str = "127.0.0.1") -> AsyncIterator[EchoServer]:
    server = EchoServer()
    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/{tail:.*}", server.post)
    app.router.add_get("/{tail:.*}", server.get)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, host, 0)
    await site.start()
    server.address = f"{host}:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
