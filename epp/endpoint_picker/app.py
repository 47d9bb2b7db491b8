"""Composition root: builds router, discovery, scraper and servers, starts them and stops them."""

import asyncio
import gc
import logging
import signal
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from cluster_client.access import ApiAccess
from cluster_client.api import KubernetesApi
from endpoint_picker.datalayer.contact import endpoint_health
from endpoint_picker.datalayer.file_discovery import FileWatch
from endpoint_picker.datalayer.kubernetes_watch import PoolWatch
from endpoint_picker.datalayer.kv_subscriber import REPLAYS, KvSubscriber
from endpoint_picker.datalayer.scrape_columns import ExporterColumns, ScrapeColumns
from endpoint_picker.datalayer.scraper import Scraper
from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.datalayer.token_client import TokenClient
from endpoint_picker.observability.flow_metrics import FlowMetrics
from endpoint_picker.observability.kv_gauges import add_kv_metrics
from endpoint_picker.observability.pool_gauges import ScrapeCounts, add_pool_gauges, pool_figures
from endpoint_picker.observability.prediction_metrics import add_prediction_metrics
from endpoint_picker.prediction_link import PredictionLink, SampleSender
from endpoint_picker.routing import build_router
from endpoint_picker.servers import PickerServers
from endpoint_picker.settings import Settings
from endpoint_picker.waiting_timer import WaitingTimer
from inference_api.offered import OfferedText, Uses

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_INSTEAD: Final = {
    Uses.LAST_GOOD: "the last good one stays in use",
    Uses.DEFAULT: "the default is in use",
}

_log = logging.getLogger(__name__)


class Picker:
    """One picker process: its parts, its start and its drain."""

    def __init__(self, settings: Settings) -> None:
        """Wire everything; needs a running event loop. Raises CertificateError, ApiError."""
        self.settings = settings
        self.router = build_router(
            config_text=_text(settings.config_file), priorities_text=_text(settings.priorities_file)
        )
        self.router.scheduler.emit_scores = settings.emit_endpoint_scores
        self.servers = PickerServers(
            settings,
            self.router,
            lambda: pool_figures(self.router.table),
            lambda: endpoint_health(self.router.table),
        )
        self.scraper = Scraper(
            ScrapeColumns(
                self.router.table,
                self.router.ledger,
                self.router.index.follow_block_size,
                self.router.page_read,
            ),
            self.router.config.scrape,
            clock=time.monotonic,
            interval=settings.refresh_metrics_interval_s,
        )
        self.exporters = Scraper(
            ExporterColumns(self.router.table), self.router.config.exporter, clock=time.monotonic
        )
        add_pool_gauges(
            self.servers.metrics,
            settings.pool_name,
            self.router.scheduler,
            lambda: self.router.offered,
            ScrapeCounts(lambda: self.scraper.scrapes, lambda: self.scraper.failures),
        )
        self.router.observe_flow(
            FlowMetrics(self.servers.metrics, settings.pool_name, lambda: self.router.flow)
        )
        add_prediction_metrics(self.servers.metrics, self.router.pool.desk)
        self._link = PredictionLink(settings.predictors) if settings.predictors else None
        if self._link is not None:
            self.router.pool.desk.connect(self._link)
        self._sender = SampleSender(self.router.pool.desk, settings.trainer) if settings.trainer else None
        loop, pool = asyncio.get_running_loop(), self.router.pool
        self._timer = WaitingTimer(self.router, loop)
        self.kv_events = KvSubscriber(pool.kv_sources, pool.kv, loop, clock=pool.clock)
        self.tokens = TokenClient(pool.tokenizing, loop, clock=pool.clock)
        add_kv_metrics(self.servers.metrics, pool, lambda: self.kv_events, REPLAYS)
        self._api: KubernetesApi | None = None
        self._watch: PoolWatch | FileWatch = self._discovery()
        self._stop = asyncio.Event()

    def _discovery(self) -> PoolWatch | FileWatch:
        settings = self.settings
        if settings.endpoints_file is not None:
            return FileWatch(settings.endpoints_file, self._endpoints)
        access = (
            ApiAccess.from_kubeconfig(settings.kubeconfig)
            if settings.kubeconfig
            else ApiAccess.in_cluster(otherwise="give --kubeconfig or --endpoints-file")
        )
        self._api = KubernetesApi(access)
        return PoolWatch(
            self._api,
            namespace=settings.pool_namespace,
            pool=settings.pool_name,
            on_endpoints=self._endpoints,
            config_map=settings.config_map,
            on_config=self._config,
            priorities_map=settings.priorities_map,
            on_priorities=self._priorities,
        )

    async def run(self) -> None:
        """Serve until a signal, then drain. OSError when a port cannot be bound."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._told_to_stop)
        await self.servers.start()
        tasks = [
            asyncio.create_task(each, name=name)
            for name, each in (
                ("discovery", self._watch.run()),
                ("scraper", self.scraper.run()),
                ("exporters", self.exporters.run()),
            )
        ]
        if self._sender is not None:
            tasks.append(asyncio.create_task(self._sender.run(), name="samples"))
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        serving = asyncio.create_task(self.servers.serve(), name="grpc")
        try:
            await _first_to_end([*tasks, stopping], serving)
            _log.info("draining", extra={"open_exchanges": self.servers.metrics.open_exchanges})
            self._stop.clear()
            self.router.drain()
            await _either(self.servers.drain(), self._stop.wait())
        finally:
            await _cancel([*tasks, serving, stopping])
            await self.servers.stop()
            self._timer.close()
            self.kv_events.close()
            await self.tokens.close()
            for each in (self._link, self._sender):
                if each is not None:
                    await each.close()
            if self._api is not None:
                await self._api.close()
            _log.info("stopped")

    def _told_to_stop(self) -> None:
        self._stop.set()  # a second signal ends the drain as well

    def _endpoints(self, endpoints: list[Endpoint]) -> None:
        """Use the endpoints of discovery once it has synced.

        Before that they change nothing, except that a pool that does not exist leaves no endpoints.
        """
        watch = self._watch
        if watch.synced:
            self.router.replace_endpoints(endpoints)
            self.servers.pool_synced()
        elif isinstance(watch, PoolWatch) and not watch.pool_found:
            self.router.replace_endpoints(())

    def _config(self, text: str) -> None:
        if self.router.apply_config(text):
            self.scraper.use(self.router.config.scrape)
            self.exporters.use(self.router.config.exporter)
            self.kv_events.follow()
            self.tokens.follow()
            _log.info("configuration in use", extra={"warnings": list(self.router.config.warnings)})
        else:
            self._complain("configuration", self.router.offered.config)

    def _priorities(self, text: str) -> None:
        if self.router.apply_priorities(text):
            _log.info("priorities in use")
        else:
            self._complain("priorities", self.router.offered.priorities)

    def _complain(self, what: str, refused: OfferedText) -> None:
        _log.error("%s refused, %s", what, _INSTEAD[refused.uses], extra={"reason": refused.error})

    def complain_of_files(self) -> None:
        """Log which of the two texts read at start is refused."""
        for what, text in (
            ("configuration", self.router.offered.config),
            ("priorities", self.router.offered.priorities),
        ):
            if text.error:
                self._complain(what, text)


def _text(path: Path) -> str:
    """Return the file's text; "", which means the defaults, when it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


async def _first_to_end(tasks: list["asyncio.Task[Any]"], serving: "asyncio.Task[None]") -> None:
    """Wait until one of `tasks` ends; raise what a task failed with.

    `serving` returns once its port is open; that alone does not end the wait.
    """
    waiting = {*tasks, serving}
    while True:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if done - {serving}:
            return
        waiting.discard(serving)


async def _either(*work: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.ensure_future(each) for each in work]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await _cancel(tasks)


async def _cancel(tasks: list["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def run(settings: Settings) -> None:
    """Run one picker until SIGTERM or SIGINT."""
    picker = Picker(settings)
    # Modules and configuration live as long as the process. Without `freeze` each full collection would scan
    # them and stop the event loop, and with it every request, for some 40 ms.
    gc.collect()
    gc.freeze()
    _log.info(
        "starting",
        extra={
            "pool": f"{settings.pool_namespace}/{settings.pool_name}",
            "address": ",".join(settings.bind_addresses),
            "grpc_port": settings.grpc_port,
            "tls": settings.secure_serving,
        },
    )
    picker.complain_of_files()
    await picker.run()
