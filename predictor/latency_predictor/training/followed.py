"""The elected trainer of another replica in place of a learning process: samples go there, bundles come back.

Bundles lie in this trainer's own folder, so that its prediction servers go on with the newest one while the
elected trainer is away.
"""

import asyncio
import json
import logging
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from latency_contract import bundles
from latency_contract.errors import ContractError
from latency_contract.sample_wire import ADD_PATH
from latency_predictor.training import transfer
from latency_predictor.training.child import MAX_WAITING
from latency_predictor.training.frames import Kind
from latency_predictor.training.paths import FLUSH_PATH, NEWEST_PATH, ROLLBACK_PATH, STATUS_PATH
from lean_grpc import CallError, Channel, StatusCode

#: Seconds between two looks for a newer bundle; longest that a call may take.
LOOK_S: Final = 1.0
CALL_S: Final = 30.0

#: The method that carries each kind of frame.
_PATHS: Final = {Kind.BATCH: ADD_PATH, Kind.FLUSH: FLUSH_PATH, Kind.ROLLBACK: ROLLBACK_PATH}
#: Answers to a frame that the elected trainer will never take.
_REFUSALS: Final = {StatusCode.INVALID_ARGUMENT, StatusCode.FAILED_PRECONDITION, StatusCode.UNIMPLEMENTED}

_log = logging.getLogger(__name__)


class FollowedTrainer:
    """Has the interface of `LearningChild`."""

    def __init__(self, address: str, models: Path) -> None:
        """`address` is HOST:PORT, or unix:PATH, at which the elected trainer listens (`--listen`)."""
        self._address = address
        self._models = models
        self._waiting: deque[tuple[Kind, bytes]] = deque()
        self._size = 0
        self._has_work = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.starts = 0
        self.status: dict[str, Any] = {"state": "warming", "version": "", "samples": 0, "error": ""}
        """The elected trainer's, with the version that is here."""
        self.has_reported = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Return None: there is no learning process."""
        return None

    def start(self) -> None:
        """Follow until `stop`; at once ready, because what is on disk can serve."""
        self._tasks = [asyncio.ensure_future(each) for each in (self._follow(), self._forward())]
        self.has_reported.set()

    def send(self, kind: Kind, payload: bytes = b"") -> bool:
        """Hand a frame on; False when too much waits, or when it must be sent to the elected trainer."""
        if kind not in _PATHS or self._size + len(payload) > MAX_WAITING:
            return False
        self._waiting.append((kind, payload))
        self._size += len(payload)
        self._has_work.set()
        return True

    async def stop(self) -> None:
        """End; what waits is lost."""
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _forward(self) -> None:
        async with Channel([self._address]) as channel:
            while True:
                while self._waiting:
                    kind, payload = self._waiting[0]
                    try:
                        await channel.unary(_PATHS[kind], payload, timeout=CALL_S)
                    except CallError as error:
                        if error.code not in _REFUSALS:
                            await asyncio.sleep(LOOK_S)
                            continue
                        _log.warning("%s refuses samples: %s", self._address, error.message)
                    self._waiting.popleft()
                    self._size -= len(payload)
                self._has_work.clear()
                await self._has_work.wait()

    async def _follow(self) -> None:
        async with Channel([self._address]) as channel:
            while True:
                try:
                    async with asyncio.timeout(CALL_S):
                        await self._look(channel)
                except (CallError, ContractError, OSError, TimeoutError) as error:
                    said = str(error) or type(error).__name__
                    self.status = {**self.status, "error": f"{self._address}: {said}"}
                await asyncio.sleep(LOOK_S)

    async def _look(self, channel: Channel) -> None:
        """Take over status and newest bundle."""
        status = json.loads(await channel.unary(STATUS_PATH, b"", timeout=CALL_S, wait_for_ready=False))
        mine = bundles.newest_version(self._models) or ""
        if status["version"] and status["version"] != mine:
            received = transfer.Receiver()
            async with channel.stream(NEWEST_PATH) as stream:
                stream.end()
                async for message in stream:
                    received.take(message)
            if received.errors:
                raise OSError("; ".join(received.errors))
            for bundle in received.bundles:
                mine = bundle.manifest.version
                await asyncio.to_thread(self._replace, bundle)
        names = ("state", "samples", "targets", "last_training", "error")
        taken = {name: status[name] for name in names if name in status}
        self.status = {**self.status, **taken, "version": mine}

    def _replace(self, bundle: bundles.Bundle) -> None:
        """Publish a bundle, without what another trainer published later: readers take the newest."""
        version = bundle.manifest.version
        known = bundles.versions(self._models)
        if version not in known:
            bundles.publish(self._models, bundle)
        for later in known:
            if later > version:
                bundles.remove(self._models, later)
