"""What a program finds inside a container of the local node."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from local_cluster.node import container_setup
from local_cluster.node.mounts import Mount, plan_root
from local_cluster.node.runtime import HostTree
from local_pods import Kube, config_map, pod

NOBODY = 65534

REPORT = """
import json, os, socket, time
def read(path):
    with open(path) as file:
        return file.read()
account = "/var/run/secrets/kubernetes.io/serviceaccount"
try:
    open("/etc/headroom/config/new", "w")
    writable = True
except OSError:
    writable = False
open("/scratch/mine", "w").write("x")
print(json.dumps({
    "env": dict(os.environ),
    "config": read("/etc/headroom/config/config.yaml"),
    "writable": writable,
    "shared": sorted(os.listdir("/scratch")),
    "resolver": read("/etc/resolv.conf"),
    "hosts": read("/etc/hosts"),
    "namespace": read(account + "/namespace"),
    "token": read(account + "/token")[:3],
    "authority": read(account + "/ca.crt")[:27],
    "labels": read("/info/labels"),
    "host_name": socket.gethostname(),
    "pid": os.getpid(),
    "processes": len([name for name in os.listdir("/proc") if name.isdigit()]),
    "passwd": os.path.exists("/etc/passwd"),
}))
time.sleep(3600)
"""


def test_environment_files_and_identity_are_a_pods(kube: Kube) -> None:
    fields = {"POD_IP": "status.podIP", "POD_NAME": "metadata.name", "NODE": "spec.nodeName"}
    env: list[dict[str, Any]] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()
    ]
    env += [{"name": "URL", "value": "http://$(POD_IP):1"}]
    env += [{"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "look", "key": "config.yaml"}}}]
    labels = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
    volumes = [
        {"name": "config", "configMap": {"name": "look"}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "info", "downwardAPI": {"items": [labels]}},
    ]
    mounts = [
        {"name": "config", "mountPath": "/etc/headroom/config"},
        {"name": "scratch", "mountPath": "/scratch"},
        {"name": "info", "mountPath": "/info"},
    ]
    looking = pod("looking", "py", REPORT, env=env, volumeMounts=mounts, volumes=volumes)
    kube.apply(config_map("look", **{"config.yaml": "hello"}), looking)
    found = json.loads(kube.await_log("looking", "processes").splitlines()[-1])
    status = kube.await_ready("looking")["status"]
    env_inside = found["env"]
    assert status["podIP"].startswith("127.")
    assert (env_inside["POD_IP"], env_inside["POD_NAME"]) == (status["podIP"], "looking")
    assert env_inside["NODE"] == "local"
    assert env_inside["URL"] == f"http://{status['podIP']}:1"
    assert (env_inside["KEY"], env_inside["FROM_IMAGE"]) == ("hello", "yes")
    assert f"https://127.0.0.1:{env_inside['KUBERNETES_SERVICE_PORT']}" == kube.cluster.url
    assert "KUBECONFIG" not in env_inside
    assert (found["config"], found["writable"], found["shared"]) == ("hello", False, ["mine"])
    assert "search default.svc.cluster.local" in found["resolver"]
    assert f"{status['podIP']} looking" in found["hosts"]
    assert (found["namespace"], found["token"]) == ("default", "eyJ")
    assert found["authority"] == "-----BEGIN CERTIFICATE-----"
    assert found["labels"] == 'app="looking"'
    assert found["host_name"] == "looking"
    assert (found["pid"], found["processes"]) == (1, 1)
    assert found["passwd"], "what the host has in /etc shows inside"


CALL = """
import json, os, ssl, urllib.error, urllib.request
account = "/var/run/secrets/kubernetes.io/serviceaccount"
context = ssl.create_default_context(cafile=account + "/ca.crt")
token = open(account + "/token").read()
base = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
def ask(path):
    request = urllib.request.Request(base + path, headers={"Authorization": "Bearer " + token})
    try:
        return urllib.request.urlopen(request, context=context).status
    except urllib.error.HTTPError as error:
        return error.code
print("answers", ask("/api/v1/namespaces/default/configmaps"), ask("/api/v1/namespaces/default/secrets"))
"""


def test_a_pod_has_the_rights_of_its_own_account_and_no_others(kube: Kube) -> None:
    kube.run("create", "serviceaccount", "reader")
    kube.run("create", "role", "reader", "--verb=list", "--resource=configmaps")
    kube.run("create", "rolebinding", "reader", "--role=reader", "--serviceaccount=default:reader")
    kube.apply(pod("caller", "py", CALL, serviceAccountName="reader", restartPolicy="Never"))
    assert "answers 200 403" in kube.await_log("caller", "answers")
    ended = kube.await_pod("caller", "has succeeded", lambda it: it["status"].get("phase") == "Succeeded")
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    user = '"username":"system:serviceaccount:default:reader"'
    assert user in kube.cluster.audit_log.read_text()


FOLLOW = """
import time
said = None
while True:
    with open("/conf/k") as file:
        now = file.read()
    if now != said:
        print("k is", now)
        said = now
    time.sleep(0.05)
"""


def test_a_running_container_sees_a_changed_config_map(kube: Kube) -> None:
    follower = pod(
        "follower",
        "py",
        FOLLOW,
        volumes=[{"name": "conf", "configMap": {"name": "living"}}],
        volumeMounts=[{"name": "conf", "mountPath": "/conf"}],
    )
    kube.apply(config_map("living", k="one"), follower)
    kube.await_log("follower", "k is one")
    kube.apply(config_map("living", k="two"))
    kube.await_log("follower", "k is two")
    assert kube.pod("follower")["status"]["containerStatuses"][0]["restartCount"] == 0


def test_containers_of_a_pod_share_its_volume_and_address(kube: Kube) -> None:
    mounts = [{"name": "shared", "mountPath": "/shared"}]
    two = pod(
        "two", "sh", "until test -e /shared/word; do sleep 0.1; done; cat /shared/word; exec sleep 3600"
    )
    two["spec"]["volumes"] = [{"name": "shared", "emptyDir": {}}]
    two["spec"]["containers"][0]["volumeMounts"] = mounts
    script = "echo from-the-other > /shared/w; mv /shared/w /shared/word; exec sleep 3600"
    two["spec"]["containers"].append(
        {"name": "other", "image": "sh", "args": [script], "volumeMounts": mounts}
    )
    kube.apply(two)
    kube.await_log("two", "from-the-other")
    assert len(kube.await_ready("two")["status"]["containerStatuses"]) == 2


def test_a_container_waits_for_a_config_map_that_comes_late(kube: Kube) -> None:
    env = [{"name": "LATE", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "k"}}}]
    kube.apply(pod("early", "sh", "echo got $LATE; exec sleep 3600", env=env))

    def waits(found: dict[str, Any]) -> bool:
        statuses = found["status"].get("containerStatuses") or [{}]
        waiting = statuses[0].get("state", {}).get("waiting", {})
        return waiting.get("reason") == "CreateContainerConfigError" and "late" in waiting["message"]

    kube.await_pod("early", "says what it waits for", waits)
    kube.apply(config_map("late", k="it"))
    kube.await_log("early", "got it")


def test_the_set_up_needs_no_rights_of_root() -> None:
    """Run it as the user `nobody` when the tests run as root, by an interpreter that this user may run."""
    user = NOBODY if os.getuid() == 0 else os.getuid()
    python = "/usr/bin/python3" if os.getuid() == 0 else sys.executable
    if not Path(python).exists():
        pytest.skip("the only interpreter is root's, which the user nobody may not run")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reader, started = os.pipe()
        script = folder / "setup.py"
        script.write_text(Path(container_setup.__file__).read_text())
        (folder / "root").mkdir()
        (folder / "conf").write_text("told")
        plan = plan_root([Mount(str(folder / "conf"), "/etc/made/conf", read_only=True)], HostTree())
        content = {
            "root": str(folder / "root"),
            "made": plan.made,
            "mounts": [asdict(mount) for mount in plan.mounts],
            "argv": [
                "/bin/sh",
                "-c",
                "read word < /etc/made/conf; test $word$$ = told1 && exit 7",
            ],
            "environment": {},
            "directory": "/",
            "host_name": "trial",
            "error_file": str(folder / "error"),
            "started": started,
        }
        (folder / "plan").write_text(json.dumps(content))
        for path in (folder, *folder.iterdir()):
            os.chown(path, user, -1)
        argv = [python, "-I", "-S", str(script), str(folder / "plan"), str(os.getpid())]
        done = subprocess.run(
            argv, user=user, stderr=subprocess.PIPE, timeout=60, check=False, cwd="/", pass_fds=(started,)
        )
        os.close(started)
        assert os.read(reader, 1) == b"", "the pipe is closed once the program runs"
        os.close(reader)
        assert done.returncode == 7, (done.stderr, (folder / "error").read_text())
