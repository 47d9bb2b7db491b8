"""How pods of the local node live: restarts, probes, refusals, endings."""

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from local_pods import Kube, eventually, pod

SERVE = """
import http.server, os, signal, sys, threading, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ok = not os.path.exists("/state/broken" + self.path)
        self.send_response(200 if ok else 503)
        self.end_headers()
    def log_message(self, *args):
        pass
def leave(*_):
    print("leaving")
    time.sleep(0.3)
    print("left")
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
print("serving")
http.server.ThreadingHTTPServer((os.environ["POD_IP"], 8000), Handler).serve_forever()
"""
POD_IP = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
STATE: dict[str, Any] = {
    "volumes": [{"name": "state", "emptyDir": {}}],
    "volumeMounts": [{"name": "state", "mountPath": "/state"}],
}


def http_probe(path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "http"}, "periodSeconds": 1, "failureThreshold": 2}


def server(name: str, **more: Any) -> dict[str, Any]:
    ports = [{"name": "http", "containerPort": 8000}]
    return pod(name, "py", SERVE, env=POD_IP, ports=ports, **STATE, **more)


def breaks(kube: Kube, name: str, what: str, *, broken: bool = True) -> None:
    """Make the server of pod `name` answer 503 for /`what`, from outside of its container."""
    root = Path(f"/proc/{kube.cluster.container_pids('default', name, 'main')[0]}/root/state/broken")
    root.mkdir(parents=True, exist_ok=True)
    if broken:
        (root / what).touch()
    else:
        (root / what).unlink()


def restarts(found: dict[str, Any]) -> int:
    statuses = found["status"].get("containerStatuses") or [{}]
    return int(statuses[0].get("restartCount", 0))


def test_a_crash_restarts_at_once_and_the_next_one_backs_off(kube: Kube) -> None:
    kube.apply(pod("crashing", "sh", "exec sleep 3600"))
    address = kube.await_ready("crashing")["status"]["podIP"]
    first = kube.cluster.container_pids("default", "crashing", "main")[0]
    os.kill(first, signal.SIGKILL)
    again = kube.await_pod("crashing", "was restarted", lambda it: restarts(it) == 1)
    status = again["status"]["containerStatuses"][0]
    assert status["lastState"]["terminated"]["exitCode"] == 137
    assert again["status"]["podIP"] == address
    kube.await_ready("crashing")
    second = kube.cluster.container_pids("default", "crashing", "main")[0]
    assert second != first
    os.kill(second, signal.SIGKILL)

    def backs_off(found: dict[str, Any]) -> bool:
        state = found["status"]["containerStatuses"][0]["state"]
        return bool(state.get("waiting", {}).get("reason") == "CrashLoopBackOff")

    kube.await_pod("crashing", "backs off", backs_off)
    kube.run("delete", "pod", "crashing", "--wait=false")
    eventually("end of the pod", lambda: not kube.pod("crashing"))


def test_a_killed_container_takes_all_of_its_processes_along(kube: Kube) -> None:
    kube.apply(pod("family", "sh", "setsid sleep 3601 & setsid sleep 3602 & echo born; exec sleep 3600"))
    kube.await_log("family", "born")
    pids = eventually(
        "three processes",
        lambda: (
            found if len(found := kube.cluster.container_pids("default", "family", "main")) == 3 else None
        ),
    )
    os.kill(pids[0], signal.SIGKILL)
    eventually("end of the children", lambda: not any(map(psutil.pid_exists, pids)))


def test_readiness_follows_the_probe(kube: Kube) -> None:
    kube.apply(server("ready", readinessProbe=http_probe("/readyz")))
    kube.await_ready("ready")
    breaks(kube, "ready", "readyz")
    kube.await_pod("ready", "is unready", lambda it: not it["status"]["containerStatuses"][0]["ready"])
    breaks(kube, "ready", "readyz", broken=False)
    assert restarts(kube.await_ready("ready")) == 0
    assert [each for each in kube.events("ready") if each["reason"] == "Unhealthy"]


def test_a_failing_liveness_probe_restarts_gracefully(kube: Kube) -> None:
    kube.apply(server("alive", livenessProbe=http_probe("/livez")))
    kube.await_log("alive", "serving")
    breaks(kube, "alive", "livez")
    kube.await_pod("alive", "was restarted", lambda it: restarts(it) >= 1)
    assert "left" in kube.await_log("alive", "left"), "it got SIGTERM and the time to end"


def test_nothing_is_probed_before_the_startup_probe_passed(kube: Kube) -> None:
    startup = {"tcpSocket": {"port": 8000}, "periodSeconds": 1, "failureThreshold": 30}
    kube.apply(server("starting", startupProbe=startup, readinessProbe=http_probe("/readyz")))
    status = kube.await_ready("starting")["status"]["containerStatuses"][0]
    assert (status["started"], status["restartCount"]) == (True, 0)


GRPC = """
import asyncio, os, grpc
async def main():
    server = grpc.aio.server()
    def check(request, context):
        return b"\\x08\\x01" if request == b"\\x0a\\x04mine" else b"\\x08\\x02"
    handler = grpc.unary_unary_rpc_method_handler(check)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": handler})])
    server.add_insecure_port(os.environ["POD_IP"] + ":9003")
    await server.start()
    print("serving")
    await server.wait_for_termination()
asyncio.run(main())
"""


@pytest.mark.parametrize(("service", "passes"), [("mine", True), ("other", False)])
def test_a_grpc_probe_asks_for_its_service(kube: Kube, service: str, passes: bool) -> None:
    name = f"grpc-{service}"
    probe = {"grpc": {"port": 9003, "service": service}, "periodSeconds": 1}
    kube.apply(pod(name, "py", GRPC, env=POD_IP, readinessProbe=probe))
    kube.await_log(name, "serving")
    if passes:
        kube.await_ready(name)
    else:
        eventually("failed probe", lambda: [e for e in kube.events(name) if "not SERVING" in e["message"]])
        assert not kube.pod(name)["status"]["containerStatuses"][0]["ready"]


def test_deleting_gives_the_program_its_time(kube: Kube) -> None:
    kube.apply(server("leaving"))
    kube.await_log("leaving", "serving")
    kube.run("delete", "pod", "leaving", "--wait=false")
    kube.await_log("leaving", "left")
    eventually("end of the pod", lambda: not kube.pod("leaving"))


def test_a_program_that_ignores_sigterm_is_killed_after_its_grace(kube: Kube) -> None:
    kube.apply(
        pod(
            "deaf",
            "sh",
            "trap '' TERM; echo deaf; while :; do sleep 1; done",
            terminationGracePeriodSeconds=1,
        )
    )
    kube.await_log("deaf", "deaf")
    pids = eventually("its process", lambda: kube.cluster.container_pids("default", "deaf", "main"))
    kube.run("delete", "pod", "deaf", "--wait=false")
    eventually("end of the pod", lambda: not kube.pod("deaf"))
    assert not psutil.pid_exists(pids[0])


@pytest.mark.parametrize(
    ("name", "change", "reason", "words"),
    [
        ("no-image", {"image": "nobody/knows:1"}, "ErrImagePull", "nobody/knows:1"),
        (
            "no-exec",
            {"livenessProbe": {"exec": {"command": ["true"]}}},
            "UnsupportedByLocalNode",
            "livenessProbe",
        ),
    ],
)
def test_an_unsupported_field_is_named_in_status_and_event(
    kube: Kube, name: str, change: dict[str, Any], reason: str, words: str
) -> None:
    refused = pod(name, "sh", "exec sleep 3600")
    refused["spec"]["containers"][0] |= change
    kube.apply(refused)

    def says_so(found: dict[str, Any]) -> bool:
        statuses = found["status"].get("containerStatuses") or [{}]
        waiting = statuses[0].get("state", {}).get("waiting", {})
        return waiting.get("reason") == reason and words in waiting["message"]

    kube.await_pod(name, "says why it does not run", says_so)
    eventually("event", lambda: [each for each in kube.events(name) if words in each["message"]])
    kube.run("delete", "pod", name, "--wait=false")
    eventually("end of the pod", lambda: not kube.pod(name))


def test_a_program_that_cannot_be_run_is_named(kube: Kube) -> None:
    broken = pod("broken", "sh")
    broken["spec"]["containers"][0]["command"] = ["/no/such/program"]
    kube.apply(broken)
    eventually("event", lambda: [e for e in kube.events("broken") if "/no/such/program" in e["message"]])
    last = kube.await_pod("broken", "has ended", restarts)["status"]["containerStatuses"][0]["lastState"]
    assert (last["terminated"]["exitCode"], last["terminated"]["reason"]) == (128, "StartError")


def test_kubectl_shows_and_follows_logs(kube: Kube) -> None:
    kube.apply(pod("talking", "sh", "echo one; echo two; sleep 1; echo three", restartPolicy="Never"))
    kube.await_log("talking", "two")
    assert kube.run("logs", "-f", "talking") == "one\ntwo\nthree\n"
    assert kube.run("logs", "talking", "--tail=1") == "three\n"


def test_a_pod_without_any_volume_runs(kube: Kube) -> None:
    kube.apply(pod("bare", "sh", "echo bare; exec sleep 3600", automountServiceAccountToken=False))
    kube.await_log("bare", "bare")
    kube.await_ready("bare")
