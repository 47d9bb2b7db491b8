"""docs/migrate.md, step by step: from a picker laid out as the extension's chart does to Headroom's.

The gateway is an Envoy whose route names the picker, in a file that the switch replaces; a stand-in picker
takes the place of the chart's. Requests are in flight all the time, and none fails. `make test-migrate`; less
than a minute.
"""

import contextlib
import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from control_plane import running_cluster
from envoy_proxy import binary, configuration, free_port
from headroom_cli.demo.api import ClusterApi, wait_for
from headroom_cli.demo.audit import AuditLog
from headroom_cli.demo.load import Load
from headroom_cli.demo.stage import Stage, is_ready
from inference_api import names

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "migrate.md").read_text()
#: Release name of the chart, and so the pool's.
OLD = "vllm-qwen"
NEW = "vllm-qwen-headroom"
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

#: As the chart writes it into its ConfigMap, shortened.
PLUGINS = """\
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: max-score-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
  - pluginRef: max-score-picker
"""
_PER_ROUTE = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"


def documents(title: str) -> str:
    """Return the YAML of the page's section."""
    section = PAGE.split(f"## {title}", 1)[1].split("\n## ", 1)[0]
    return section.split("```yaml\n", 1)[1].split("```", 1)[0]


class Gateway:
    """An Envoy with one route, which asks one picker by the endpoint picker protocol."""

    def __init__(self, folder: Path, pickers: dict[str, str], servers: list[str]) -> None:
        self._routes = folder / "routes.json"
        self._port, self._admin = free_port(), free_port()
        self.route(next(iter(pickers)))
        config = configuration(self._port, "unused:1", tls=True, admin_port=self._admin)
        resources = config["static_resources"]
        pool, picker = resources["clusters"]
        resources["clusters"] = [_static(pool, "pool", *servers)]
        resources["clusters"] += [_static(picker, *each) for each in pickers.items()]
        manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        del manager["route_config"]
        source = {"resource_api_version": "V3", "path_config_source": {"path": str(self._routes)}}
        manager["rds"] = {"route_config_name": "routes", "config_source": source}
        manager["http_filters"][0]["typed_config"]["grpc_service"]["envoy_grpc"]["cluster_name"] = next(
            iter(pickers)
        )
        self._log = (folder / "envoy.log").open("wb")
        command = [
            str(binary()),
            "--config-yaml",
            json.dumps(config),
            "--use-dynamic-base-id",
            "--concurrency",
            "1",
        ]
        self._process = subprocess.Popen(
            [*command, "--log-level", "warning"], stdout=self._log, stderr=self._log
        )
        self.url = f"http://127.0.0.1:{self._port}"
        wait_for("Envoy to take connections", self._is_ready, limit_s=30)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._admin}/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def route(self, picker: str) -> None:
        """Send requests by this picker from now on, as a gateway does when an HTTPRoute changes."""
        override = {
            "@type": _PER_ROUTE,
            "overrides": {"grpc_service": {"envoy_grpc": {"cluster_name": picker}}},
        }
        route = {
            "match": {"prefix": "/"},
            "route": {"cluster": "pool", "timeout": "0s"},
            "typed_per_filter_config": {"endpoint_picker": override},
        }
        resource = {
            "@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            "name": "routes",
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}],
        }
        fresh = self._routes.with_suffix(".new")
        fresh.write_text(json.dumps({"resources": [resource]}))
        fresh.rename(self._routes)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)
        self._log.close()


def _static(template: dict[str, Any], name: str, *addresses: str) -> dict[str, Any]:
    """Return a cluster with these endpoints, otherwise like the template."""
    cluster: dict[str, Any] = json.loads(json.dumps(template))
    cluster.pop("eds_cluster_config", None)
    split = [address.rpartition(":") for address in addresses]
    endpoints = [
        {"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(port)}}}}
        for host, _, port in split
    ]
    assignment = {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}
    return cluster | {"name": name, "type": "STATIC", "load_assignment": assignment}


def charts_objects() -> list[dict[str, Any]]:
    """Return what the extension's chart installs for a release, with a stand-in for its picker."""
    name = f"{OLD}-epp"
    labels = {"inferencepool": name}
    rules = [
        {"apiGroups": [""], "resources": ["pods", "configmaps"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [names.POOL_GROUP], "resources": ["inferencepools"], "verbs": ["get", "list", "watch"]},
    ]
    rbac = "rbac.authorization.k8s.io"
    container = {
        "name": "epp",
        "image": "headroom-epp:0.1.0",
        "args": [
            f"--pool-name={OLD}",
            "--pool-namespace=default",
            "--config-file=/config/default-plugins.yaml",
        ],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"containerPort": port} for port in (9002, 9003, 9090)],
        "readinessProbe": {"grpc": {"port": 9003, "service": "inference-extension"}, "periodSeconds": 2},
        "volumeMounts": [{"name": "plugins", "mountPath": "/config"}],
    }
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": {"name": name}, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name},
            "data": {"default-plugins.yaml": PLUGINS},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {
                "replicas": 1,
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "serviceAccountName": name,
                        "terminationGracePeriodSeconds": 130,
                        "containers": [container],
                        "volumes": [{"name": "plugins", "configMap": {"name": name}}],
                    },
                },
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {
                "selector": labels,
                "ports": [
                    {"name": "grpc-ext-proc", "port": 9002, "appProtocol": "kubernetes.io/h2c"},
                    {"name": "http-metrics", "port": 9090},
                ],
            },
        },
        {
            "apiVersion": f"{names.POOL_GROUP}/v1",
            "kind": "InferencePool",
            "metadata": {"name": OLD},
            "spec": {
                "selector": {"matchLabels": {"app": OLD}},
                "targetPorts": [{"number": 8000}],
                "endpointPickerRef": {"name": name, "port": {"number": 9002}, "failureMode": "FailOpen"},
            },
        },
    ]


def server_deployments() -> list[dict[str, Any]]:
    text = (ROOT / "manifests/examples/quickstart/quickstart.yaml").read_text()
    return [found for found in yaml.safe_load_all(text) if found["kind"] == "Deployment"]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with running_cluster(tmp_path_factory.mktemp("migrate")) as cluster:
        api = ClusterApi(cluster.kubeconfig)
        made = Stage(cluster, api, AuditLog(cluster.audit_log), pool=NEW)
        made.kubectl("create", "-k", str(ROOT / "manifests/gie-crds"))
        made.apply_text(yaml.safe_dump_all([*charts_objects(), *server_deployments()]))
        yield made
        api.close()


def ready_pod(stage: Stage, selector: str) -> dict[str, Any]:
    found, _ = wait_for(
        f"a ready pod of {selector}", lambda: [p for p in stage.pods(selector) if is_ready(p)], limit_s=180
    )
    return found[0]


def snapshot(stage: Stage) -> dict[str, str]:
    """Return the version of the chart's objects, without their status's changes."""
    listed = stage.kubectl("get", "deploy,service,configmap,serviceaccount,role,rolebinding", "-o", "json")
    return {
        f"{each['kind']}/{each['metadata']['name']}": json.dumps(each.get("spec", each.get("data", "")))
        for each in json.loads(listed)["items"]
        if each["metadata"]["name"] == f"{OLD}-epp"
    }


def word(stage: Stage) -> str:
    """Return the operator's word on the chart's pool."""
    annotations = stage.pool_object(OLD)["metadata"].get("annotations") or {}
    return str(annotations.get(names.PICKER_ANNOTATION, ""))


def picked(pod: dict[str, Any]) -> float:
    """Return how many requests a picker has seen."""
    with urllib.request.urlopen(f"http://{pod['status']['podIP']}:9090/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("llm_d_epp_request_total"))


def test_the_switch_costs_no_request(stage: Stage, tmp_path: Path) -> None:
    old = ready_pod(stage, f"inferencepool={OLD}-epp")
    before = snapshot(stage)

    # Step 1: the operator beside the chart's picker touches nothing of it.
    stage.kubectl("apply", "-k", str(ROOT / "manifests/base"))
    wait_for("the operator's word on the pool", lambda: word(stage) == "ServiceNotOurs", limit_s=120)
    assert snapshot(stage) == before

    # Step 2: a second pool over the same model servers gets its picker, before any request goes there.
    stage.apply_text(documents("2."))
    stage.await_condition("Ready", "True", limit_s=180)
    new = ready_pod(stage, f"app={NEW}-epp")

    addresses = {name: f"{pod['status']['podIP']}:9002" for name, pod in (("old", old), ("new", new))}
    servers = [f"{pod['status']['podIP']}:8000" for pod in stage.servers()]
    gateway = Gateway(tmp_path, addresses, servers)
    with contextlib.closing(gateway), Load(gateway.url, in_flight=8) as load:
        load.await_served(100)
        assert picked(old) > 0
        assert picked(new) == 0

        # Step 3: the route names the other pool.
        gateway.route("new")
        wait_for("requests at Headroom's picker", lambda: picked(new) > 50, limit_s=60)

        # Step 4: nothing asks the old picker any more; it goes.
        still = picked(old)
        load.await_served(100)
        assert picked(old) == still
        stage.kubectl("delete", "-f", "-", stdin=yaml.safe_dump_all(charts_objects()))
        load.await_served(100)
        sent = load.stop()

    assert [result.error or result.status for result in sent if not result.ok] == []
    assert stage.condition("Ready") is not None
    stage.await_condition("Ready", "True", limit_s=60)
