"""Service names inside containers lead to ready pods, by DNS and by hosts files."""

from collections.abc import Iterator

import pytest

from control_plane import running_cluster
from local_pods import IMAGES, Kube, config_map, pod, service

LOOK = """
import socket, time
said = None
while True:
    found = {}
    for name in ("target", "target.default", "target.default.svc", "target.default.svc.cluster.local"):
        try:
            found[name] = sorted({each[4][0] for each in socket.getaddrinfo(name, 80, socket.AF_INET)})
        except OSError:
            found[name] = []
    same = {tuple(each) for each in found.values()}
    now = f"all names lead to {sorted(same)[0]}" if len(same) == 1 else f"names differ: {found}"
    if now != said:
        print(now)
        said = now
    time.sleep(0.1)
"""


@pytest.fixture(scope="module", params=["dns", "hosts"])
def either(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    with running_cluster(tmp_path_factory.mktemp("names"), IMAGES, names=request.param) as cluster:
        yield Kube(cluster)


def test_a_service_name_follows_the_ready_pods(either: Kube) -> None:
    either.apply(service("target"), pod("looking", "py", LOOK))
    either.await_log("looking", "all names lead to ()")
    gate = {
        "volumes": [{"name": "gate", "configMap": {"name": "gate", "optional": True}}],
        "volumeMounts": [{"name": "gate", "mountPath": "/gate"}],
    }
    script = "until test -e /gate/open; do sleep 0.1; done; exec python3 -m http.server 8000 --bind $POD_IP"
    probe = {"httpGet": {"port": 8000}, "periodSeconds": 1}
    env = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    either.apply(pod("target", "sh", script, env=env, readinessProbe=probe, **gate))
    address = either.await_pod("target", "has an address", lambda it: it["status"].get("podIP"))["status"][
        "podIP"
    ]
    assert address not in either.cluster.container_log("default", "looking", "main").read_text()
    either.apply(config_map("gate", open="yes"))
    either.await_log("looking", f"all names lead to ('{address}',)")
    either.run("delete", "pod", "target", "--wait=false")
    either.await_log("looking", f"('{address}',)\nall names lead to ()")
