"""/healthz, /readyz and /metrics."""

from collections.abc import Callable

from aiohttp import web

from batch_subscriber.errors import ConfigurationError
from batch_subscriber.metrics import Metrics


async def serve(address: str, metrics: Metrics, not_ready: Callable[[], str]) -> web.AppRunner:
    """Serve on HOST:PORT; the caller cleans the runner up.

    `not_ready` returns why the process is not ready, "" while it is. Raises ConfigurationError for an address
    that cannot be bound.
    """

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        why = not_ready()
        return web.Response(text=f"{why or 'ok'}\n", status=503 if why else 200)

    async def page(_: web.Request) -> web.Response:
        return web.Response(
            body=metrics.page(), headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    application = web.Application()
    application.router.add_get("/healthz", healthy)
    application.router.add_get("/readyz", ready)
    application.router.add_get("/metrics", page)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    host, _, port = address.rpartition(":")
    try:
        await web.TCPSite(runner, host.strip("[]") or "0.0.0.0", int(port)).start()  # noqa: S104 - the flag's
    except OSError as fault:
        await runner.cleanup()
        msg = f"http: {address} cannot be bound: {fault.strerror}"
        raise ConfigurationError(msg) from fault
    return runner
