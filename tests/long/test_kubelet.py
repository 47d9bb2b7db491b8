"""What only a real kubelet shows, and that a kubelet node leaves nothing behind.

`make test-kubelet` needs root and takes about 20 minutes; it runs the end-to-end tests on such a node, too.
ARGS='-k "left_behind"' chooses. The demo's check is one of these tests: it brings about every promise of the
product, and the tests of tests/e2e that do the same are left out.
"""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import yaml

from headroom_cli.demo.api import Manifest, wait_for
from headroom_cli.demo.coexistence import SMALL_WITH_PROXY, applied, pool, user_picker
from headroom_cli.demo.failure import DemoError
from headroom_cli.demo.load import Load
from headroom_cli.demo.main import bring_up
from headroom_cli.demo.scenarios import LIMIT_S, settle
from headroom_cli.demo.stage import OPERATOR_USER, Stage, is_ready, uid
from inference_api import names
from local_cluster.cluster import LocalCluster
from local_cluster.kubelet.record import parts_of
from local_cluster.state import KUBELET, read_state
from local_cluster.tools import find_kubectl
from machine_state import Machine, Traces

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = "/apis/apps/v1/namespaces/headroom-system/deployments/headroom-operator"
SIMULATOR = "headroom-model-server-sim:0.1.0"
PARTS = ("containerd", "dns", "kubelet", "kube-proxy", "kube-scheduler")
#: Most seconds until a deleted child is back, at the median.
HEALED_S = 0.5
IDLE_S = 30.0


@contextmanager
def in_tree() -> Iterator[None]:
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        yield
    finally:
        os.chdir(before)


def test_the_demos_check_keeps_every_promise_and_leaves_nothing_behind(tmp_path: Path) -> None:
    directory, log = tmp_path / "demo", tmp_path / "log"
    before, traces = Machine.look(), Traces()
    argv = [sys.executable, "-m", "headroom_cli.main", "demo", "up", "--node=kubelet", "--check"]
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*argv, f"--dir={directory}"], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
        ) as demo,
    ):
        while demo.poll() is None:
            traces.note(LocalCluster(directory))
            time.sleep(5)
    print(log.read_text()[-4000:])
    assert demo.returncode == 0
    assert len(traces.namespaces) > 10
    assert traces.left() == []
    assert Machine.look().left_behind(before) == []


@pytest.mark.parametrize("end", ["down", "killed supervisor"])
def test_an_end_of_the_cluster_leaves_nothing_behind(tmp_path: Path, end: str) -> None:
    before, traces = Machine.look(), Traces()
    cluster = LocalCluster(tmp_path / "c", node=KUBELET)
    with in_tree():
        cluster.start()
    try:
        stage = Stage.open(cluster)
        stage.apply_text(json.dumps(server_pod("left")))
        await_pod(stage, "left")
        assert cluster.container_pids("default", "left", "server")
        stage.close()
        traces.note(cluster)
        assert len(traces.namespaces) > 3
        if end == "killed supervisor":
            state = read_state(cluster.directory)
            assert state is not None
            os.kill(state.supervisor, signal.SIGKILL)
            wait_for("the end of all processes", lambda: not cluster.processes(), limit_s=60)
    finally:
        cluster.stop()
    assert cluster.processes() == []
    assert traces.left() == []
    assert Machine.look().left_behind(before) == []


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The quickstart's pool, Ready, in containers, in a namespace that enforces the restricted standard."""
    cluster = LocalCluster(tmp_path_factory.mktemp("kubelet"), node=KUBELET)
    try:
        with in_tree():
            made, _ = bring_up(cluster)
        yield made
        made.close()
    finally:
        cluster.stop()


def server_pod(name: str, **labels: str) -> Manifest:
    """Return a pod of the simulator that the restricted standard admits."""
    restricted = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"run": name, **labels}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "server",
                    "image": SIMULATOR,
                    "args": ["--port=8000", "--host=0.0.0.0"],
                    "securityContext": restricted,
                    "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 1},
                }
            ],
        },
    }


def await_pod(stage: Stage, name: str) -> Manifest:
    def ready() -> Manifest | None:
        found = stage.api.get(f"/api/v1/namespaces/default/pods/{name}")
        return found if found is not None and is_ready(found) else None

    return wait_for(f"pod {name} to be ready", ready, limit_s=LIMIT_S)[0]


def await_reason(stage: Stage, kind: str, reason: str, limit_s: float = LIMIT_S) -> str:
    """Wait until a condition is False for that reason; return its message."""

    def said() -> str:
        found = stage.condition(kind) or {}
        return (
            str(found["message"]) if (found.get("status"), found.get("reason")) == ("False", reason) else ""
        )

    return wait_for(f"{kind}=False, {reason}", said, limit_s=limit_s, every_s=0.2)[0]


def fetch(url: str, limit_s: float = 30.0) -> str:
    """GET a page, again while it is refused."""

    def ask() -> str:
        with suppress(OSError), urllib.request.urlopen(url, timeout=5) as response:
            return str(response.read().decode())
        return ""

    return wait_for(url, ask, limit_s=limit_s)[0]


@contextmanager
def port_forward(stage: Stage, namespace: str, target: str, port: int) -> Iterator[str]:
    """Run `kubectl port-forward`; yield the local address as a base URL."""
    argv = [str(find_kubectl()), "port-forward", "-n", namespace, target, f":{port}"]
    environment = {**os.environ, "KUBECONFIG": str(stage.cluster.kubeconfig)}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout is not None
            found = re.search(r"127\.0\.0\.1:(\d+)", forward.stdout.readline())
            assert found is not None
            yield f"http://127.0.0.1:{found[1]}"
        finally:
            forward.terminate()


def test_logs_and_exec(stage: Stage) -> None:
    log = stage.kubectl("logs", "-n", "headroom-system", "deployment/headroom-operator")
    assert "operator started" in log
    assert '"level": "ERROR"' not in log
    picker = f"deployment/{stage.picker()}"
    script = "import os; print(os.getuid(), os.environ['POD_IP'])"
    ran = stage.kubectl("exec", picker, "--", "python3", "-c", script).split()
    assert ran[0] != "0"
    assert ran[1] == stage.picker_pod()["status"]["podIP"]
    with pytest.raises(DemoError, match="Read-only file system"):
        stage.kubectl("exec", picker, "--", "python3", "-c", "open('/tmp/x', 'w')")


def test_port_forward_reaches_proxy_picker_and_operator(stage: Stage) -> None:
    picker = stage.picker()
    with port_forward(stage, "default", f"service/{picker}-proxy", names.PROXY_PORT) as url:
        assert '"qwen"' in fetch(f"{url}/v1/models")
    with port_forward(stage, "default", f"service/{picker}", names.METRICS_PORT) as url:
        assert json.loads(fetch(f"{url}/debug/state"))["pool"]["name"] == stage.pool
    with port_forward(stage, "headroom-system", "deployment/headroom-operator", 8080) as url:
        assert json.loads(fetch(f"{url}/readyz"))["status"] == "ok"


def service(stage: Stage, name: str) -> Manifest:
    found = stage.api.get(stage.path("Service", name))
    assert found is not None
    return found


def test_service_addresses_answer_here_and_in_pods(stage: Stage) -> None:
    name = f"{stage.picker()}-proxy"
    address = service(stage, name)["spec"]["clusterIP"]
    assert '"qwen"' in fetch(f"http://{address}:{names.PROXY_PORT}/v1/models")
    script = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=10).read().decode())"
    for host in (name, f"{name}.default.svc.cluster.local"):
        url = f"http://{host}:{names.PROXY_PORT}/v1/models"
        picker = f"deployment/{stage.picker()}"
        assert '"qwen"' in stage.kubectl("exec", picker, "--", "python3", "-c", script, url)


def test_endpoint_slices_name_the_ready_pods(stage: Stage) -> None:
    settle(stage)
    for name in (stage.picker(), f"{stage.picker()}-proxy"):
        slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
        path = f"{slices}?labelSelector=kubernetes.io/service-name={name}"
        found = [
            address
            for each in stage.api.items(path)
            for endpoint in each.get("endpoints") or ()
            if endpoint["conditions"]["ready"]
            for address in endpoint["addresses"]
        ]
        assert found == [pod["status"]["podIP"] for pod in stage.pods(f"app={name}") if is_ready(pod)]


def test_the_restricted_standard_admits_all_pods_and_no_others(stage: Stage) -> None:
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    namespace = stage.api.patch("/api/v1/namespaces/default", label)
    assert namespace["metadata"]["labels"].items() >= label["metadata"]["labels"].items()
    system = stage.api.get("/api/v1/namespaces/headroom-system")
    assert system is not None
    assert system["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    refused = server_pod("refused")
    refused["spec"]["hostNetwork"] = True
    status, answer = stage.api.request("POST", "/api/v1/namespaces/default/pods", refused)
    assert status == 403
    assert "PodSecurity" in answer["message"]
    before = {pod["metadata"]["uid"] for pod in stage.pods("")}
    stage.kubectl("delete", "pods", "--all", "--wait=false")

    def all_new() -> bool:
        return before.isdisjoint(pod["metadata"]["uid"] for pod in stage.pods(""))

    wait_for("every pod to be replaced", all_new, limit_s=2 * LIMIT_S)
    stage.kubectl("delete", "pods", "-n", "headroom-system", "--all", "--wait=true")
    settle(stage)
    wait_for("the operator", lambda: available(stage), limit_s=LIMIT_S)


def available(stage: Stage) -> bool:
    found = stage.api.get(OPERATOR) or {}
    status = found["status"]
    return bool(
        status.get("availableReplicas") == status.get("replicas") == 1
        and status.get("observedGeneration") == found["metadata"]["generation"]
        and status.get("updatedReplicas") == 1
    )


def test_a_network_policy_for_the_picker_is_accepted(stage: Stage) -> None:
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "picker"},
        "spec": {
            "podSelector": {"matchLabels": {"app": stage.picker()}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": [{"podSelector": {"matchLabels": {"app": f"{stage.picker()}-proxy"}}}],
                    "ports": [{"port": names.EXT_PROC_PORT}],
                }
            ],
        },
    }
    assert "created" in stage.apply_text(json.dumps(policy))
    assert "networkpolicy" in stage.kubectl("delete", "networkpolicy", "picker")


def test_a_deleted_child_is_back_at_once(stage: Stage) -> None:
    settle(stage)
    picker = stage.picker()
    # Each once: what is deleted again and again is made again ever later.
    children = (
        ("ConfigMap", f"{picker}-config"),
        ("ConfigMap", f"{picker}-priorities"),
        ("Service", picker),
        ("RoleBinding", picker),
        ("Service", f"{picker}-proxy"),
    )
    took = [heal(stage, stage.path(kind, name)) for kind, name in children]
    print("healed in", [round(each, 2) for each in took], "s")
    assert statistics.median(took) <= HEALED_S


def heal(stage: Stage, path: str) -> float:
    """Delete an object; return the seconds until the operator has made it again."""
    before = uid(stage.api.get(path))
    stage.api.delete(path)

    def back() -> bool:
        return uid(stage.api.get(path)) not in ("", before)

    return wait_for("the object to be back", back, limit_s=LIMIT_S, every_s=0.01)[1]


def test_an_idle_operator_asks_nothing_beyond_its_watches_and_leases(stage: Stage) -> None:
    arguments = stage.api.get(OPERATOR)["spec"]["template"]["spec"]["containers"][0]["args"]  # type: ignore[index]
    (place,) = [n for n, text in enumerate(arguments) if text.startswith("--resync-interval=")]
    path = f"/spec/template/spec/containers/0/args/{place}"
    stage.api.patch_json(OPERATOR, [{"op": "replace", "path": path, "value": "--resync-interval=1h"}])
    try:
        wait_for("the operator's roll-out", lambda: available(stage), limit_s=LIMIT_S)
        settle(stage)
        quiet = Quiet(stage)
        wait_for(f"{IDLE_S:.0f} s without a request", quiet, limit_s=180, every_s=0.5)
    finally:
        stage.api.patch_json(OPERATOR, [{"op": "replace", "path": path, "value": arguments[place]}])
        wait_for("the operator's roll-out", lambda: available(stage), limit_s=LIMIT_S)


class Quiet:
    """Whether the operator has asked nothing for IDLE_S but to go on with watches and to renew its leases."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._begin()

    def _begin(self) -> None:
        self._stage.audit.mark()
        self._since = time.monotonic()

    def __call__(self) -> bool:
        calls = self._stage.audit.calls(OPERATOR_USER)
        asked = [call for call in calls if call.verb != "watch" and call.resource != "leases"]
        if asked:
            print(f"after {time.monotonic() - self._since:.1f} s: {asked[0]}")
            self._begin()
        return time.monotonic() - self._since > IDLE_S


def test_the_kubelets_probe_restarts_a_frozen_picker(stage: Stage) -> None:
    settle(stage)
    name = stage.picker_pod()["metadata"]["name"]
    os.kill(stage.cluster.container_pids("default", name, "epp")[0], signal.SIGSTOP)
    reason, _ = stage.await_condition("PickerReady", "False", limit_s=LIMIT_S)
    assert reason == "PodsNotReady"
    stage.await_condition("PickerReady", "True", limit_s=LIMIT_S)
    (status,) = stage.picker_pod()["status"]["containerStatuses"]
    assert stage.picker_pod()["metadata"]["name"] == name
    assert status["restartCount"] >= 1
    assert status["lastState"]["terminated"]["exitCode"] == 128 + signal.SIGKILL
    events = stage.kubectl("get", "events", "--field-selector", f"involvedObject.name={name}")
    assert "Liveness probe failed" in events


def test_a_picker_killed_at_its_memory_limit_is_reported_and_recovers(stage: Stage) -> None:
    starved = stage.beside("starved")
    resources = {"requests": {"cpu": "50m", "memory": "16Mi"}, "limits": {"memory": "24Mi"}}
    with applied(starved, [user_picker("starved", {"resources": resources}), pool("starved")]):
        message = await_reason(starved, "PickerReady", "OutOfMemory")
        assert "(24Mi)" in message
        await_reason(starved, "Ready", "OutOfMemory")
        enough = {"spec": {"resources": SMALL_WITH_PROXY["resources"]}}
        starved.api.patch(starved.path("EndpointPicker", "starved"), enough)
        starved.await_condition("PickerReady", "True", limit_s=2 * LIMIT_S)


def test_an_image_that_cannot_be_pulled_is_reported(stage: Stage) -> None:
    unpulled = stage.beside("unpulled")
    spec = {"image": "registry.invalid/picker:1", "resources": SMALL_WITH_PROXY["resources"]}
    with applied(unpulled, [user_picker("unpulled", spec), pool("unpulled")]):
        message = await_reason(unpulled, "PickerReady", "ImageNotPulled")
        assert "registry.invalid" in message


def test_memory_under_load_leaves_room_below_the_limits(stage: Stage) -> None:
    settle(stage)
    pods = {
        "operator": (
            "headroom-system",
            stage.api.items("/api/v1/namespaces/headroom-system/pods")[0],
            "operator",
        ),
        "picker": ("default", stage.picker_pod(), "epp"),
        "proxy": ("default", stage.pods(f"app={stage.picker()}-proxy")[0], "envoy"),
        "model server": ("default", stage.servers()[0], "model-server"),
    }
    with Load(stage.proxy_url(), in_flight=200, large=True) as load:
        load.await_served(1000, limit_s=600)
        sent = load.stop()
    # Two starved cores fail some of these; that none fails otherwise is for the demo's check to show.
    print(f"{sum(not each.ok for each in sent)} of {len(sent)} requests failed")
    for part, (namespace, pod, container) in pods.items():
        name = pod["metadata"]["name"]
        pids = stage.cluster.container_pids(namespace, name, container)
        peak, limit = memory(pids[0])
        print(f"{part}: at most {peak / 2**20:.0f} MiB of {limit / 2**20:.0f} MiB")
        assert peak < limit / 2


def memory(pid: int) -> tuple[int, int]:
    """Return the most memory that a container has held, anonymous and cached, and its limit, bytes."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            group = Path("/sys/fs/cgroup/memory", path.lstrip("/"))
            return (
                int((group / "memory.max_usage_in_bytes").read_text()),
                int((group / "memory.limit_in_bytes").read_text()),
            )
        if not controllers and (group := Path("/sys/fs/cgroup", path.lstrip("/"), "memory.peak")).exists():
            return int(group.read_text()), int(group.with_name("memory.max").read_text())
    raise AssertionError(f"process {pid} has no memory cgroup")


def part_process(stage: Stage, part: str) -> int:
    """Return the process of a part of the node."""
    for pid in stage.cluster.processes():
        with suppress(psutil.Error):
            argv = psutil.Process(pid).cmdline()
            if argv and (
                Path(argv[0]).name == part or ("local_cluster.kubelet.dns" in argv and part == "dns")
            ):
                return pid
    raise AssertionError(f"no process of {part}")


def starts(stage: Stage) -> dict[str, int]:
    return {part.name: part.starts for part in parts_of(stage.cluster.directory)}


def await_started_again(stage: Stage, before: dict[str, int], *parts: str) -> None:
    def again() -> bool:
        now = {part.name: part for part in parts_of(stage.cluster.directory)}
        return all(now[part].starts > before[part] and now[part].runs for part in parts)

    wait_for(f"{', '.join(parts)} to be started again", again, limit_s=180)


def use_the_node(stage: Stage, name: str) -> None:
    """Run a new pod behind a new Service, and reach it from here and, by name, from another pod."""
    front = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"run": name}, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    stage.apply_text(yaml.safe_dump_all((server_pod(name), front)))
    await_pod(stage, name)
    fetch(f"http://{service(stage, name)['spec']['clusterIP']}/v1/models", limit_s=LIMIT_S)
    script = f"import urllib.request as r; print(r.urlopen('http://{name}/v1/models', timeout=30).status)"
    assert (
        stage.kubectl("exec", f"deployment/{stage.picker()}", "--", "python3", "-c", script).strip() == "200"
    )
    stage.kubectl("delete", "pod,service", name, "--wait=true")


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_killed_is_started_again(stage: Stage, part: str) -> None:
    before = starts(stage)
    os.kill(part_process(stage, part), signal.SIGKILL)
    await_started_again(stage, before, part)
    use_the_node(stage, f"after-{part}")
    (state,) = [each for each in parts_of(stage.cluster.directory) if each.name == part]
    assert state.last_end == "ended with code -9"


def test_parts_that_hang_are_started_again(stage: Stage) -> None:
    before = starts(stage)
    for part in PARTS:
        os.kill(part_process(stage, part), signal.SIGSTOP)
    await_started_again(stage, before, *PARTS)
    use_the_node(stage, "after-hang")
    log = (stage.cluster.log_directory / "node.log").read_text()
    assert [part for part in PARTS if f"{part} has not answered" not in log] == []
    settle(stage)
