"""HTTP of the prediction server: metrics, health, and what the other project's client calls."""

import json
import time
from typing import Any, Final

from aiohttp import web

from latency_contract.schema import TARGET_NAMES
from latency_predictor.serving import upstream
from latency_predictor.serving.follower import Follower
from latency_predictor.serving.metrics import exposition
from latency_predictor.serving.model import UnknownQuantileError
from latency_predictor.serving.service import PredictionService

#: Largest body: 10,000 rows of some 300 bytes.
MAX_BODY: Final = 8 << 20


class HttpApi:
    """The routes, over a service."""

    def __init__(self, service: PredictionService, follower: Follower, quantile: float) -> None:
        self._service = service
        self._follower = follower
        self._quantile = quantile

    def application(self) -> web.Application:
        """Return the application to serve."""
        made = self.status_application()
        made.add_routes(
            [
                web.post("/predict", self._predict),
                web.post("/predict/bulk", self._bulk),
                web.post("/predict/bulk/strict", self._strict),
                web.post("/reload", self._reload),
            ]
        )
        return made

    def status_application(self) -> web.Application:
        """Return the application that only shows: for ports that others than the picker reach."""
        made = web.Application(client_max_size=MAX_BODY)
        made.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
                web.get("/status", self._status),
            ]
        )
        return made

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.Response:
        """Answer that the server is ready: a server that still warms up says so in its answers."""
        return web.json_response({"status": "ready", "state": self._service.state.name.lower()})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=exposition(self._service, self._follower), content_type="text/plain")

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response(self._state())

    def _state(self) -> dict[str, Any]:
        service, model = self._service, self._service.model
        targets = {} if model is None else model.manifest.models
        return {
            "is_ready": service.state.routes,
            "state": service.state.name.lower(),
            "version": "" if model is None else model.manifest.version,
            "error": self._follower.error,
            "model_type": upstream.MODEL_TYPE,
            "objective_type": upstream.OBJECTIVE,
            "quantile": self._quantile,
            "last_model_load": service.loaded_at or None,
            "training_server_url": "",
            "models_exist": {
                name: any(each.name.lower() == name for each in targets) for name in TARGET_NAMES
            },
            "ensemble_active": False,
        }

    async def _predict(self, request: web.Request) -> web.Response:
        asked, bad = upstream.question([await _body(request)], self._quantile)
        if bad:
            return _unprocessable(bad[0][1])
        if self._service.model is None:
            return _not_ready()
        try:
            found = self._service.predict(asked)
        except UnknownQuantileError as error:
            return web.json_response({"detail": str(error)}, status=400)
        (answer,) = upstream.answers(found, self._quantile, time.time(), self._service.loaded_at)
        return web.json_response(answer)

    async def _strict(self, request: web.Request) -> web.Response:
        return await self._many(request, strict=True)

    async def _bulk(self, request: web.Request) -> web.Response:
        return await self._many(request, strict=False)

    async def _many(self, request: web.Request, *, strict: bool) -> web.Response:
        begun = time.perf_counter()
        try:
            entries = upstream.bulk_entries(await _body(request))
        except upstream.BodyError as error:
            return _unprocessable(str(error))
        asked, bad = upstream.question(entries, self._quantile)
        if bad and strict:
            return _unprocessable("; ".join(f"requests[{index}]: {why}" for index, why in bad[:20]))
        if self._service.model is None:
            return _not_ready()
        try:
            found = self._service.predict(asked)
        except UnknownQuantileError as error:
            return web.json_response({"detail": str(error)}, status=400)
        made: list[Any] = upstream.answers(found, self._quantile, time.time(), self._service.loaded_at)
        for index, _why in bad:
            made.insert(index, None)
        page = upstream.bulk(made, len(bad), time.perf_counter() - begun)
        if not strict:
            page["errors"] = [
                {"index": index, "error": why, "request": entries[index]} for index, why in bad
            ] or None
        return web.json_response(page)

    async def _reload(self, request: web.Request) -> web.Response:
        before = self._follower.loads
        await self._follower.look()
        loaded = self._follower.loads > before
        return web.json_response({"synced": True, "loaded": loaded, **self._state()})


async def _body(request: web.Request) -> object:
    try:
        body: object = json.loads(await request.read())
    except (ValueError, RecursionError):
        return None
    return body


def _unprocessable(why: str) -> web.Response:
    return web.json_response({"detail": why}, status=422)


def _not_ready() -> web.Response:
    return web.json_response({"detail": "there is no model yet"}, status=503)
