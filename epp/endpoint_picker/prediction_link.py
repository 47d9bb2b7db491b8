"""Carries prediction calls and samples over lean_grpc: the shell around `latency.desk.Desk`."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

from endpoint_picker.latency.desk import Desk
from endpoint_picker.latency.link import Answered
from latency_contract.prediction_wire import PREDICT_PATH
from latency_contract.sample_wire import ADD_PATH, encode_batch
from lean_grpc import Backoff, CallError, Channel, Metadata, Status

#: Seconds between two batches of samples, and until one is given up.
SEND_S: Final = 1.0
GIVE_UP_S: Final = 10.0
#: A sidecar is near: it is dialled again after a moment.
_BACKOFF: Final = Backoff(first=0.05, longest=1.0)

_log = logging.getLogger(__name__)


class _Answer:
    """Receives one call's answer."""

    __slots__ = ("_answered", "_payload")

    def __init__(self, answered: Answered) -> None:
        self._answered = answered
        self._payload: bytes | None = None

    def opened(self, metadata: Metadata) -> None:
        """Pass over the metadata."""

    def received(self, payload: bytes) -> None:
        """Keep the message."""
        self._payload = payload

    def ended(self, status: Status) -> None:
        """Pass the message on; a call that failed has none."""
        self._answered(self._payload if not status.code else None)

    def writable(self) -> None:
        """Pass over it: a question is one message."""


class PredictionLink:
    """A `latency.link.Link`: a channel for each prediction server. Make it in the event loop."""

    answers_at_once = False

    def __init__(self, targets: Sequence[str]) -> None:
        self._channels = [Channel(each, backoff=_BACKOFF) for each in targets]

    @property
    def servers(self) -> int:
        """Return how many servers there are."""
        return len(self._channels)

    def send(self, server: int, message: bytes, timeout_s: float, answered: Answered) -> None:
        """Send a question; the answer comes in a later turn of the event loop."""
        handler = _Answer(answered)
        call = self._channels[server].call(PREDICT_PATH, handler, timeout=timeout_s)
        call.send(message, end=True)

    async def close(self) -> None:
        """Close the channels."""
        await asyncio.gather(*(each.close() for each in self._channels))


class SampleSender:
    """Sends the desk's samples to the trainer, each second. What it cannot send is lost, and counted."""

    def __init__(self, desk: Desk, target: str) -> None:
        self._desk = desk
        self._channel = Channel(target, backoff=_BACKOFF)
        self._reported = False
        desk.wall_offset_s = time.time() - desk.clock()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await asyncio.sleep(SEND_S)
            await self.send()

    async def send(self) -> None:
        """Send all samples that wait."""
        samples = self._desk.samples
        while (batch := samples.take()) is not None:
            try:
                await self._channel.unary(
                    ADD_PATH, encode_batch(batch), timeout=GIVE_UP_S, wait_for_ready=True
                )
            except CallError as error:
                samples.lost += len(batch)
                if not self._reported:
                    _log.warning("samples are lost: the trainer does not take them: %s", error)
                self._reported = True
            else:
                samples.sent += len(batch)
                self._reported = False
        self._desk.wall_offset_s = time.time() - self._desk.clock()

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()
