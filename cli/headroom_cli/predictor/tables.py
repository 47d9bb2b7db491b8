"""What `headroom predictor status` prints. Pure."""

from typing import Any

from headroom_cli.text_table import age, part, table

Object = dict[str, Any]


def summary(prediction: Object) -> str:
    """Return prediction in a line: "trained, routes; e2e error 12%; gain latency +21% (+17% to +25%)"."""
    if not prediction or not prediction.get("enabled", True):
        return "off"
    state = str(prediction["state"])
    text = f"{state}, routes" if prediction["routes"] else f"{state}, does not route ({prediction['reason']})"
    errors = [f"{name} {part(each['medianAbsolute'])}" for name, each in sorted(prediction["errors"].items())]
    text += f"; error {', '.join(errors)}" if errors else ""
    gains = [_gain(name, gain) for name, gain in prediction["gain"].items() if gain]
    return text + (f"; gain {', '.join(gains)}" if gains else "")


def _gain(name: str, gain: Object) -> str:
    arms = "" if gain["enough"] else f", {min(gain['predicted'], gain['heuristic'])} of 400 requests"
    return f"{name} {gain['mean']:+.0%} ({gain['low']:+.0%} to {gain['high']:+.0%}{arms})"


def status(picker: str, prediction: Object, trainer: Object | None, now: float) -> str:
    """Return the whole status of one picker; `now` is seconds since the epoch."""
    rows = [["Picker", picker], ["Prediction", summary(prediction)]]
    if prediction.get("enabled"):
        rate, samples = prediction["rate"], prediction["samples"]
        requests = [f"{name} {count}" for name, count in prediction["requests"].items() if count]
        rows += [
            [
                "Mode",
                f"{prediction['mode']}, {'streaming' if prediction['streamingMode'] else 'whole answers'}",
            ],
            ["Model", prediction["version"] or "none"],
            ["Servers", f"{prediction['serversAnswering']} of {prediction['servers']} answer"],
            [
                "Asked",
                f"{rate['requestsPerSecond']:.1f} requests/s, {rate['rowsPerSecond']:.0f} candidates/s",
            ],
            ["Requests", ", ".join(requests) or "none"],
            [
                "Samples",
                f"{samples['sent']} sent, {samples['lost']} lost, {samples['dropped']} dropped",
            ],
        ]
    if trainer is None:
        return table(rows)
    rows.append(["Trainer", _trainer(trainer, now)])
    for problem in ("error", "disk_error", "peer_error", "archive_error"):
        if trainer.get(problem):
            rows.append(["", f"{problem.replace('_', ' ')}: {trainer[problem]}"])
    return f"{table(rows)}\n\n{_targets(trainer)}".rstrip()


def _trainer(trainer: Object, now: float) -> str:
    text = f"{trainer['state']}, {trainer['samples']} samples"
    last = trainer.get("last_training") or {}
    if last.get("at_s"):
        text += f", trained {age(max(0.0, now - float(last['at_s'])))} ago"
    return text if trainer["ready"] else f"{text}, starting"


def _targets(trainer: Object) -> str:
    targets = trainer.get("targets") or {}
    if not targets:
        return ""
    rows = [["TARGET", "RECENT ERROR", "STRATIFIED ERROR"]]
    for name, each in sorted(targets.items()):
        rows.append([name, part(each.get("recent_error")), part(each.get("stratified_error"))])
    return table(rows)
