"""An export on a volume that outlives the pod: what a trainer starts from when no older one runs."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Final, Protocol

from latency_contract.errors import ContractError
from latency_predictor.training import transfer

#: Seconds between two writes.
WRITE_S: Final = 300.0

_log = logging.getLogger(__name__)


class Keeper(Protocol):
    """The trainer, as the archive uses it."""

    def transferred(self) -> list[bytes]:
        """Return everything, as messages."""
        ...

    def take_over(self, received: transfer.Receiver, *, seeds: bool) -> None:
        """Publish and keep what was received."""
        ...


class Archive:
    """One file. Trainers of two pods may write it: each write replaces the whole file at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.error = ""
        """Why it was not read or written the last time; "" when it was."""

    def restore(self, keeper: Keeper) -> bool:
        """Give the keeper what the file holds; False when there is no file, or none that can be used."""
        received = transfer.Receiver()
        try:
            if self._path.stat().st_size > transfer.MAX_BYTES + (1 << 20):
                self._fail(f"{self._path} is larger than {transfer.MAX_BYTES >> 20} MiB")
                return False
            for message in transfer.unpack(self._path.read_bytes()):
                received.take(message)
        except FileNotFoundError:
            return False
        except (OSError, ContractError) as error:
            self._fail(str(error))
            return False
        keeper.take_over(received, seeds=False)
        self.error = "; ".join(received.errors)
        _log.info("the archive gave %d bundles, %d batches", len(received.bundles), len(received.batches))
        return True

    async def write(self, keeper: Keeper) -> None:
        """Replace the file; what fails is logged, and the file before stays."""
        messages = keeper.transferred()
        try:
            await asyncio.to_thread(self._replace, messages)
        except OSError as error:
            self._fail(f"{self._path}: {error.strerror or error}")
        else:
            self.error = ""

    def _replace(self, messages: list[bytes]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        made = self._path.with_name(f"{self._path.name}.{os.uname().nodename}")
        try:
            with made.open("wb") as file:
                file.write(transfer.pack(messages))
                file.flush()
                os.fsync(file.fileno())
            made.replace(self._path)
        finally:
            made.unlink(missing_ok=True)

    def _fail(self, error: str) -> None:
        self.error = error
        _log.warning("the archive: %s", error)
