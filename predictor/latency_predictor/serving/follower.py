"""Follows the folder of bundles: the newest one that can be used serves, and no call waits for its loading.

A bundle is read and tried in a thread, then one reference is replaced. Calls under way end with the model
that they began with. A bundle that is corrupt or of another schema is reported, and the one before it stays.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from latency_contract import bundles
from latency_contract.errors import ContractError
from latency_predictor.serving.forest import ForestError
from latency_predictor.serving.model import ServingModel, serving_model

#: Seconds between two looks at the folder.
LOOK_S: Final = 0.25

_log = logging.getLogger(__name__)


class Follower:
    """Loads bundles."""

    def __init__(self, models: Path, use: Callable[[ServingModel], None]) -> None:
        self._models = models
        self._use = use
        self._serving: ServingModel | None = None
        self._tried = ""
        """Version that was looked at last, whether it could be used or not."""
        self.error = ""
        """Why the newest bundle cannot be used; "" when it is used, or there is none."""
        self.loads = 0
        self.failures = 0

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                await self.look()
            except Exception:  # whatever a bundle does, the server goes on with the one before it
                _log.exception("looking for bundles failed")
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Load the newest bundle when it is another than the one looked at last."""
        try:
            newest = await asyncio.to_thread(bundles.newest_version, self._models)
            if newest is None or newest == self._tried:
                return
            self._tried = newest
            made = await asyncio.to_thread(self._load, newest)
        except (ContractError, ForestError, OSError) as error:
            self._fail(error)
            await self._fall_back()
            return
        self._take(made)
        self.error = ""

    async def _fall_back(self) -> None:
        """Without a model, take the newest older bundle that can be used."""
        if self._serving is not None:
            return
        try:
            names = await asyncio.to_thread(bundles.versions, self._models)
        except OSError as error:
            self._fail(error)
            return
        for name in reversed(names[:-1]):
            try:
                self._take(await asyncio.to_thread(self._load, name))
            except (ContractError, ForestError, OSError) as error:
                self._fail(error)
            else:
                return

    def _load(self, version: str) -> ServingModel:
        return serving_model(bundles.load(self._models, version), self._serving)

    def _take(self, made: ServingModel) -> None:
        self._serving = made
        self.loads += 1
        self._use(made)
        _log.info("bundle %s in use, state %s", made.manifest.version, made.manifest.state.name.lower())

    def _fail(self, error: Exception) -> None:
        self.failures += 1
        self.error = str(error)
        _log.error("a bundle cannot be used, the one before it stays: %s", error)
