"""What a picker says of prediction becomes conditions, on a real API server; a thread answers for it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override

from inference_api.names import METRICS_PORT
from inference_api.offered import Offered, OfferedText, text_mark
from inference_api.prediction_report import PredictionReport
from operator_cluster import Space, eventually, make_ready, picker, pool

TRAINED: dict[str, Any] = {
    "enabled": True,
    "servers": 1,
    "serversAnswering": 1,
    "state": "trained",
    "version": "1764590000000-0a1b2c3d",
    "routes": True,
    "errors": {"e2e": {"judged": 400, "medianAbsolute": 0.1}},
}
IDLE = {**TRAINED, "routes": False}


class PredictingPicker(BaseHTTPRequestHandler):
    """Accepts the configuration that it finds, and reports what the test set."""

    space: Space
    said: dict[str, Any]

    def do_GET(self) -> None:
        """Answer /debug/config."""
        text = (self.space.get("config", "llm-epp-config") or {})["data"]["config.yaml"]
        report = PredictionReport.model_validate(self.said) if "predicted-latency-producer" in text else None
        body = Offered(config=OfferedText(mark=text_mark(text)), prediction=report).model_dump_json().encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def answering(space: Space, address: str) -> Iterator[dict[str, Any]]:
    """Answer for the picker at `address`; what the dict holds is what it says of prediction."""
    said: dict[str, Any] = {}
    handler = type("Handler", (PredictingPicker,), {"space": space, "said": said})
    server = ThreadingHTTPServer((address, METRICS_PORT), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield said
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def containers(space: Space) -> list[str]:
    body = space.get("deployment", "llm-epp")
    return [each["name"] for each in body["spec"]["template"]["spec"]["containers"]] if body else []


def predicts(space: Space, status: str, reason: str) -> bool:
    return space.condition("llm", "PredictorReady")[:2] == (status, reason)


def test_every_state_of_prediction_becomes_a_reason_and_off_leaves_nothing(space: Space) -> None:
    space.create("picker", picker("llm", latencyPredictor={"enabled": True, "predictionServerCount": 2}))
    space.create("pool", pool("llm"))
    eventually(lambda: containers(space) == ["epp", "trainer", "predictor-0", "predictor-1"])
    eventually(lambda: space.condition("llm", "PredictorReady")[:2] == ("Unknown", "NotAsked"))
    with answering(space, "127.0.94.7") as said:
        said.update({**IDLE, "state": "warming", "samples": {"sent": 12}})
        eventually(lambda: [p for p in space.all("pod") if p["metadata"]["labels"]["app"] == "llm-epp"])
        make_ready(space, "llm-epp", "127.0.94.7")
        eventually(lambda: space.condition("llm", "PredictorReady")[:2] == ("False", "WarmingUp"))
        assert "12 samples" in space.condition("llm", "PredictorReady")[2]
        for change, reason in (
            ({"serversAnswering": 0}, "Unreachable"),
            ({"state": "degraded"}, "Degraded"),
            ({"isOutForNoGain": True}, "NoGain"),
        ):
            said.clear()
            said.update({**IDLE, **change})
            eventually(partial(predicts, space, "False", reason), reason)
        said.clear()
        said.update(TRAINED)
        eventually(lambda: space.condition("llm", "PredictorReady")[:2] == ("True", "Trained"))
        assert space.condition("llm", "PredictionSupported")[:2] == ("True", "Supported")
        status = (space.get("picker", "llm") or {})["status"]["latencyPredictor"]
        assert (status["state"], status["error"]) == ("trained", "e2e 10%")
        events = {event["reason"] for event in space.all("event")}
        assert {"Unreachable", "Degraded", "NoGain", "Trained"} <= events

        space.merge("picker", "llm", {"spec": {"latencyPredictor": {"enabled": False}}})
        eventually(lambda: containers(space) == ["epp"])
        ports = (space.get("service", "llm-epp") or {})["spec"]["ports"]
        assert [each["name"] for each in ports] == ["grpc-ext-proc", "http-metrics"]
        volumes = (space.get("deployment", "llm-epp") or {})["spec"]["template"]["spec"]["volumes"]
        assert [each["name"] for each in volumes] == ["config", "priorities"]
        eventually(lambda: "latencyPredictor" not in (space.get("picker", "llm") or {})["status"])
        kinds = {each["type"] for each in (space.get("picker", "llm") or {})["status"]["conditions"]}
        assert not kinds & {"PredictorReady", "PredictionSupported"}
