"""HTTP of the trainer: metrics and health, and the endpoints that the other project's Go client calls."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import xgboost
from aiohttp import web

from latency_contract import bundles
from latency_contract.errors import ContractError
from latency_contract.schema import TARGET_NAMES, Target
from latency_predictor.training.metrics import exposition
from latency_predictor.training.service import TrainingService
from latency_predictor.training.settings import TrainerSettings
from latency_predictor.training.upstream import batches_of
from lean_grpc import CallError

#: Largest body; upstream's client sends at most 10,000 entries of some 400 bytes.
MAX_BODY: Final = 16 << 20
#: Errors of a body that are answered.
_ERRORS: Final = 20


class HttpApi:
    """The routes, over a service."""

    def __init__(
        self, service: TrainingService, settings: TrainerSettings, clock: Callable[[], float] = time.time
    ) -> None:
        self._service = service
        self._settings = settings
        self._clock = clock

    def application(self) -> web.Application:
        """Return the application to serve."""
        made = self.status_application()
        made.add_routes(
            [
                web.get("/data/status", self._data_status),
                web.post("/add_training_data_bulk", self._add),
                web.post("/flush", self._flush),
                web.get("/model/download/info", self._info),
                web.get("/model/{name}/xgb/json", self._trees),
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
        if not self._service.is_ready:
            return web.json_response({"detail": "starting"}, status=503)
        return web.json_response({"status": "ready"})

    async def _metrics(self, request: web.Request) -> web.Response:
        body = exposition(self._service.status())
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response(self._service.status())

    async def _data_status(self, request: web.Request) -> web.Response:
        status = self._service.status()
        return web.json_response(
            {
                "training_data": {"total_samples": status["samples"]},
                "model_ready": status["state"] != "warming",
                "last_retrain": status.get("last_training", {}).get("at_s"),
            }
        )

    async def _add(self, request: web.Request) -> web.Response:
        """Take the good entries of a body; 202 says how many. 422 only when none can be used."""
        try:
            body = await request.json()
        except ValueError:
            return web.json_response({"detail": "the body is not JSON"}, status=400)
        entries = body.get("entries") if isinstance(body, dict) else None
        if not isinstance(entries, list):
            return web.json_response({"detail": "entries: must be an array"}, status=422)
        batches, errors = batches_of(entries, self._clock())
        added = [self._service.add_batch(each) for each in batches]
        accepted = sum(each.accepted for each in added)
        self._service.counts.rejected += len(errors)
        if errors and not batches:
            return web.json_response({"detail": errors[:_ERRORS]}, status=422)
        if batches and not accepted and any(each.shed for each in added):
            return web.json_response({"detail": "more samples than the trainer takes"}, status=503)
        answer: dict[str, Any] = {"message": f"Accepted {accepted} training samples."}
        if errors:
            answer["rejected"] = errors[:_ERRORS]
        return web.json_response(answer, status=202)

    async def _flush(self, request: web.Request) -> web.Response:
        count = self._service.status()["samples"]
        try:
            self._service.flush()
        except CallError as error:
            return web.json_response({"detail": error.message}, status=503)
        return web.json_response(
            {
                "success": True,
                "flushed_at": datetime.fromtimestamp(self._clock(), UTC).isoformat(),
                "training_samples_flushed": count,
                "message": f"Flushed {count} samples; the models stay.",
            }
        )

    async def _info(self, request: web.Request) -> web.Response:
        status = self._service.status()
        targets = status.get("targets", {})
        return web.json_response(
            {
                "model_type": "xgboost",
                "quantile": self._settings.bound,
                "objective_type": "quantile",
                "available_endpoints": {
                    name: f"/model/{name}/xgb/json" for name in TARGET_NAMES if name in targets
                },
                "model_status": {name: "ready" if name in targets else "not_ready" for name in TARGET_NAMES},
                "evaluation_info": {
                    name: {"recent_error": each["recent_error"], "stratified_error": each["stratified_error"]}
                    for name, each in targets.items()
                },
            }
        )

    async def _trees(self, request: web.Request) -> web.Response:
        """Answer the trees of a target's model, of all heads, without base model and offsets."""
        name = request.match_info["name"]
        bundle, _ = bundles.load_newest(self._settings.models)
        if name not in TARGET_NAMES or bundle is None:
            return web.json_response({"detail": "no such model"}, status=404)
        trees = bundle.trees.get(Target(TARGET_NAMES.index(name)))
        if trees is None:
            return web.json_response({"detail": "no such model"}, status=404)
        try:
            booster = xgboost.Booster()
            booster.load_model(bytearray(trees))
        except (ContractError, xgboost.core.XGBoostError) as error:
            return web.json_response({"detail": str(error).splitlines()[0]}, status=500)
        text = f"[{','.join(booster.get_dump(dump_format='json'))}]"
        return web.Response(text=text, content_type="application/json")
