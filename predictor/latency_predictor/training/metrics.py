"""The trainer's metrics page, from its status. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from latency_contract.states import State

_HELP: Final = {
    "state": "State of the predictor: 1 for the present one.",
    "samples": "Samples that are kept.",
    "received_total": "Rows of samples received, by what became of them.",
    "trainings_total": "Trainings of this learning process.",
    "promotions_total": "Trainings of which at least one model was promoted.",
    "training_cpu_seconds": "CPU seconds of the last training.",
    "learner_starts_total": "Starts of the learning process.",
    "disk_errors_total": "Batches of samples that could not be written to disk.",
    "error_ratio": "Median absolute log error of the latest served predictions, by target and regime.",
    "coverage_ratio": "Part of the latest outcomes below the predicted bound, by target and regime.",
    "degraded": "1 where errors or bounds do not hold, by target and regime.",
}
#: Before every name.
PREFIX: Final = "headroom_trainer_"


def exposition(status: Mapping[str, Any]) -> bytes:
    """Return the page, in Prometheus' text format 0.0.4."""
    lines: list[str] = []

    def series(name: str, kind: str, values: list[tuple[str, float]]) -> None:
        lines.append(f"# HELP {PREFIX}{name} {_HELP[name]}")
        lines.append(f"# TYPE {PREFIX}{name} {kind}")
        lines.extend(f"{PREFIX}{name}{labels} {value:g}" for labels, value in values)

    state = str(status["state"])
    names = [each.name.lower() for each in State]
    series("state", "gauge", [(f'{{state="{each}"}}', float(each == state)) for each in names])
    series("samples", "gauge", [("", status["samples"])])
    received = status["received"]
    series("received_total", "counter", [(f'{{outcome="{each}"}}', received[each]) for each in received])
    series("trainings_total", "counter", [("", status.get("trainings", 0))])
    series("promotions_total", "counter", [("", status.get("promotions", 0))])
    series("training_cpu_seconds", "gauge", [("", status.get("last_training", {}).get("cpu_s", 0.0))])
    series("learner_starts_total", "counter", [("", status["learner_starts"])])
    series("disk_errors_total", "counter", [("", status["disk_errors"])])
    errors, coverage, degraded = [], [], []
    for target, each in status.get("targets", {}).items():
        for regime, found in each["regimes"].items():
            labels = f'{{target="{target}",regime="{regime}"}}'
            degraded.append((labels, float(found["degraded"])))
            if found["pairs"]:
                errors.append((labels, found["error"]))
                coverage.append((labels, found["coverage"]))
    series("error_ratio", "gauge", errors)
    series("coverage_ratio", "gauge", coverage)
    series("degraded", "gauge", degraded)
    return ("\n".join(lines) + "\n").encode()
