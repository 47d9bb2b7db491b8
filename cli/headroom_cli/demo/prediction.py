"""The promise of latency prediction: a pool learns from its first requests, and then serves faster."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from headroom_cli.demo.api import Manifest, progress, wait_for
from headroom_cli.demo.coexistence import SMALL_WITH_PROXY, applied, pool, server_deployment, user_picker
from headroom_cli.demo.failure import DemoError
from headroom_cli.demo.load import MODEL, Load
from headroom_cli.demo.scenarios import LIMIT_S, picker_page
from headroom_cli.demo.stage import Measurement, Stage
from headroom_cli.predictor.tables import summary
from model_server_sim.client import Ask

NAME: Final = "predicted"
IN_FLIGHT: Final = 2
LEAST_SAMPLES: Final = 60
TRAINED_GOAL_S: Final = 60.0
"""From the first request to the first that prediction may route."""
GAIN_LIMIT_S: Final = 420.0
_FAST_REPLICAS: Final = 2
_SLOW_SPEED: Final = 0.1

_SMALL: Final = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
#: Half of the requests are held out, so that the two arms are soon large enough for a verdict.
PREDICTOR: Final[dict[str, Any]] = {
    "enabled": True,
    "mode": "All",
    "streamingMode": True,
    "holdout": 50,
    "retrain": {"leastSamples": LEAST_SAMPLES},
    "resources": {"trainer": _SMALL, "predictionServer": _SMALL},
}


@contextmanager
def predicted_pool(stage: Stage) -> Iterator[Stage]:
    """Run a pool with prediction, of two model servers and one that takes ten times as long."""
    made = stage.beside(NAME)
    spec = {**SMALL_WITH_PROXY, "latencyPredictor": PREDICTOR}
    with applied(made, [user_picker(NAME, spec), pool(NAME), *_servers(stage)]):
        made.await_condition("Ready", "True", limit_s=3 * LIMIT_S)
        yield made


def prediction(stage: Stage) -> list[Measurement]:
    """A pool with prediction learns from its first requests, and then answers sooner than the heuristic."""
    with predicted_pool(stage) as made:
        picker = made.picker()
        progress(f"$ kubectl get pods -l app={picker}")
        progress(made.kubectl("get", "pods", "-l", f"app={picker}").rstrip())
        progress(f"cold start: {summary(report(made))}")
        with Load(made.proxy_url(), in_flight=IN_FLIGHT, make=ask) as load:
            trained_s = await_trained(made)
            progress(f"trained after {trained_s:.0f} s: {summary(report(made))}")
            gain = await_gain(made)
            load.stop()
            if gain is None:
                raise DemoError(f"prediction brings no gain: {summary(report(made))}")
        made.await_condition("PredictorReady", "True", limit_s=LIMIT_S)
        progress(f"with both arms measured: {summary(report(made))}")
    return [
        Measurement("prediction_trained", trained_s, "s", TRAINED_GOAL_S),
        Measurement("predicted_over_heuristic_ttft", 1 - gain["mean"], "", 1),
    ]


def report(stage: Stage) -> dict[str, Any]:
    """Return what the picker says of prediction."""
    page = picker_page(stage.picker_pod()["status"]["podIP"], "/debug/state")
    found: dict[str, Any] = page["router"]["latencyPrediction"]
    return found


def await_trained(stage: Stage) -> float:
    """Wait until requests are routed by prediction; return the seconds."""
    _, seconds = wait_for("a trained model", lambda: report(stage)["routes"], limit_s=3 * LIMIT_S)
    return seconds


def await_gain(stage: Stage) -> dict[str, Any] | None:
    """Wait until the gain in latency is above 0 with its whole interval, by at least the number of requests
    that a verdict takes; return it, or None when that does not come in time.

    The first models know little, so that the first verdict need not be the last.
    """

    def measured() -> dict[str, Any] | None:
        gain: dict[str, Any] | None = report(stage)["gain"]["latency"]
        return gain if gain is not None and gain["enough"] and gain["low"] > 0 else None

    try:
        gain, _ = wait_for("a gain", measured, limit_s=GAIN_LIMIT_S, every_s=2.0)
    except DemoError:
        return None
    return gain


def ask(number: int) -> Ask:
    """Return a streaming request whose prompt differs from its first word, and by its length."""
    return Ask(
        model=MODEL, prompt=f"{number} asks. " + "Why? " * (20 + 40 * (number % 5)), max_tokens=8, stream=True
    )


def _servers(stage: Stage) -> list[Manifest]:
    """Return the Deployments of the model servers; their times are long beside a busy machine's."""
    made = []
    for suffix, replicas, speed in (("fast", _FAST_REPLICAS, 1.0), ("slow", 1, _SLOW_SPEED)):
        deployment = server_deployment(stage, NAME)
        deployment["metadata"]["name"] = f"{NAME}-{suffix}"
        deployment["spec"]["replicas"] = replicas
        deployment["spec"]["selector"]["matchLabels"]["speed"] = suffix
        template = deployment["spec"]["template"]
        template["metadata"]["labels"]["speed"] = suffix
        (server,) = template["spec"]["containers"]
        server["args"] = [
            *server["args"], "--iteration-s=0.01", "--prefill-token-s=0.0008", f"--speed={speed}",
        ]  # fmt: skip
        made.append(deployment)
    return made
