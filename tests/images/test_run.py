"""The images under the rules of a strict cluster: each starts, works, is quiet, and writes nowhere.

A scenario runs twice: strictly, and as root on a root file system that can be written, where a write shows.
The bounds on CPU time are two and a half to three times what is measured (0.40, 0.35 and 0.13 s).
"""

import base64
import json
import re
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

import envoy_messages as wire
from api_server import ApiServer
from containers import HOST, Container, free_ports
from control_plane import running_control_plane
from ext_proc.handler import PROCESS_METHOD
from image_builds import Built
from image_contents import IMAGES
from inference_api.crd import RESOURCES
from operator_cluster import CRDS, ROOT, Cluster, established, eventually, kubectl, pool

#: CPU seconds from the start of the process until it is ready.
CPU_BOUND_S = {"operator": 1.0, "epp": 0.9, "simulator": 0.4, "predictor": 2.5}
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
MODES = pytest.mark.parametrize("strict", [True, False], ids=["strict", "as-root"])


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real API server with the base manifests."""
    directory = tmp_path_factory.mktemp("operator-image")
    with running_control_plane(directory / "plane") as plane:
        api = ApiServer(plane)
        for resource in RESOURCES:
            assert api.create(CRDS, resource.definition()).code == 201
        for resource in RESOURCES:
            eventually(partial(established, api, resource.definition()["metadata"]["name"]))
        kubectl(plane, "apply", "-k", str(ROOT / "manifests" / "base"))
        yield Cluster(plane, api, directory)


def check_quiet(container: Container) -> None:
    assert container.stop() == 0, container.log.read_text()[-3000:]
    assert container.complaints() == []


@pytest.mark.parametrize("key", IMAGES)
def test_help_and_version_need_nothing(built: Built, key: str) -> None:
    code, text = built.engine.output(built.names[key], "--help")
    assert code == 0
    assert text.startswith("usage: ")
    code, text = built.engine.output(built.names[key], "--version")
    assert (code, text.split()[-1]) == (0, built.build.version)


@pytest.mark.parametrize("key", IMAGES)
def test_a_bad_command_line_is_one_sentence(built: Built, key: str) -> None:
    code, text = built.engine.output(built.names[key], "--no-such-flag")
    assert code == 2
    assert "--no-such-flag" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("key", ["operator", "epp"])
def test_outside_of_a_cluster_it_says_so_in_a_line(built: Built, key: str) -> None:
    arguments = ["--pool-name=llm"] if key == "epp" else []
    code, text = built.engine.output(built.names[key], *arguments)
    assert code == 1
    (line,) = text.splitlines()
    assert json.loads(line)["level"] == "ERROR"
    assert re.search("in a cluster|in a pod", json.loads(line)["message"])


@MODES
def test_a_prediction_server_starts_by_the_code_that_the_image_brings(
    built: Built, tmp_path: Path, strict: bool
) -> None:
    rpc, port = free_ports(2)
    (tmp_path / "models").mkdir()
    flags = (
        *("--models=/models", "--http=", f"--listen={HOST}:{rpc}"),
        f"--status-http={HOST}:{port}",
    )
    mounts = [(tmp_path / "models", "/models")]
    with built.engine.running(
        built.names["predictor"], *flags, log=tmp_path / "log", strict=strict, mounts=mounts
    ) as container:
        container.until(f"http://{HOST}:{port}/readyz")
        assert container.cpu_seconds() < CPU_BOUND_S["predictor"]
        if not strict:
            assert container.written_files() == []
        check_quiet(container)


@MODES
def test_the_simulator_serves(built: Built, tmp_path: Path, strict: bool) -> None:
    (port,) = free_ports(1)
    flags = (f"--port={port}", f"--host={HOST}", "--drain-seconds=0", "--time-scale=100")
    image = built.names["simulator"]
    with built.engine.running(image, *flags, log=tmp_path / "log", strict=strict) as container:
        container.until(f"http://{HOST}:{port}/health")
        assert container.cpu_seconds() < CPU_BOUND_S["simulator"]
        body = json.dumps({"model": "meta-llama/Llama-3.1-8B-Instruct", "prompt": "hello", "max_tokens": 4})
        request = urllib.request.Request(
            f"http://{HOST}:{port}/v1/completions", body.encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.loads(answer.read())["usage"]["completion_tokens"] == 4
        if not strict:
            assert container.written_files() == []
        check_quiet(container)


def test_a_write_would_show(built: Built, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    flags = (f"--port={port}", f"--host={HOST}", "--drain-seconds=0")
    with built.engine.running(
        built.names["simulator"], *flags, log=tmp_path / "log", strict=False
    ) as container:
        container.until(f"http://{HOST}:{port}/health")
        built.engine.ask("exec", container.name, "python3", "-c", "open('/tmp/written', 'w').close()")
        assert container.written_files() == ["/tmp", "/tmp/written"]


@MODES
async def test_the_picker_picks_from_a_file(built: Built, tmp_path: Path, strict: bool) -> None:
    (tmp_path / "config").mkdir()
    endpoint = {"name": "s1", "address": "127.0.93.9", "port": 8001}
    (tmp_path / "config/endpoints.json").write_text(json.dumps({"endpoints": [endpoint]}))
    rpc, probe, metrics = free_ports(3)
    flags = (
        "--endpoints-file=/endpoints/endpoints.json",
        f"--bind-address={HOST}",
        *(f"--grpc-port={rpc}", f"--grpc-health-port={probe}", f"--metrics-port={metrics}"),
        "--no-secure-serving",
        "--drain-timeout=1s",
    )
    mounts = [(tmp_path / "config", "/endpoints")]
    image = built.names["epp"]
    with built.engine.running(image, *flags, log=tmp_path / "log", strict=strict, mounts=mounts) as container:
        container.until(f"http://{HOST}:{metrics}/readyz")
        assert container.cpu_seconds() < CPU_BOUND_S["epp"]
        async with grpc.aio.insecure_channel(f"{HOST}:{rpc}") as channel:
            call: Any = channel.stream_stream(PROCESS_METHOD)()
            await call.write(wire.request_headers())
            await call.write(wire.request_body(wire.body_of(), end=True))
            (head,) = wire.read([await call.read()])
            assert wire.set_headers(head)["x-gateway-destination-endpoint"] == "127.0.93.9:8001"
            call.cancel()
        if not strict:
            assert container.written_files() == []
        check_quiet(container)


def test_the_picker_follows_a_pool_with_an_embedded_certificate(
    built: Built, cluster: Cluster, tmp_path: Path
) -> None:
    space = cluster.space()
    space.create("pool", pool("llm"))
    config = json.loads(cluster.plane.kubeconfig.read_text())
    for section in (config["clusters"][0]["cluster"], config["users"][0]["user"]):
        for name in ("certificate-authority", "client-certificate", "client-key"):
            if file := section.pop(name, None):
                section[f"{name}-data"] = base64.b64encode(Path(file).read_bytes()).decode()
    assert "client-key-data" in config["users"][0]["user"]
    (tmp_path / "config").mkdir()
    (tmp_path / "config/kubeconfig").write_text(json.dumps(config))
    rpc, probe, metrics = free_ports(3)
    flags = (
        *("--pool-name=llm", f"--pool-namespace={space.name}", "--kubeconfig=/config/kubeconfig"),
        f"--bind-address={HOST}",
        *(f"--grpc-port={rpc}", f"--grpc-health-port={probe}", f"--metrics-port={metrics}"),
    )
    mounts = [(tmp_path / "config", "/config")]
    with built.engine.running(built.names["epp"], *flags, log=tmp_path / "log", mounts=mounts) as container:
        container.until(f"http://{HOST}:{metrics}/readyz")
        check_quiet(container)


@MODES
def test_the_operator_works_with_its_service_account(
    built: Built, cluster: Cluster, tmp_path: Path, strict: bool
) -> None:
    space = cluster.space()
    account = tmp_path / "account"
    account.mkdir()
    path = "/api/v1/namespaces/headroom-system/serviceaccounts/headroom-operator/token"
    token = cluster.api.create(path, {"spec": {"expirationSeconds": 3600}}).body["status"]["token"]
    (account / "token").write_text(token)
    (account / "ca.crt").write_bytes(cluster.plane.certificate_authority.read_bytes())
    (account / "namespace").write_text("headroom-system")
    (port,) = free_ports(1)
    _, _, api_port = cluster.plane.url.rpartition(":")
    # The resync is too far away to heal anything: the watches have to.
    flags = (f"--health-port={port}", "--resync-interval=1h", f"--namespaces={space.name}")
    mounts = [(account, ACCOUNT)]
    with built.engine.running(
        built.names["operator"],
        *flags,
        log=tmp_path / "log",
        strict=strict,
        mounts=mounts,
        environment=[
            ("KUBERNETES_SERVICE_HOST", HOST),
            ("KUBERNETES_SERVICE_PORT", api_port),
            ("POD_IP", HOST),
        ],
    ) as container:
        container.until(f"http://{HOST}:{port}/healthz")
        assert container.cpu_seconds() < CPU_BOUND_S["operator"]
        space.create("pool", pool("llm"))
        eventually(lambda: space.get("deployment", "llm-epp"), "the picker's Deployment")
        first = (eventually(lambda: space.get("config", "llm-epp-config")) or {})["metadata"]["uid"]
        space.delete("config", "llm-epp-config")

        def healed() -> bool:
            found = space.get("config", "llm-epp-config")
            return found is not None and found["metadata"]["uid"] != first

        eventually(healed, "the ConfigMap healed")
        if not strict:
            assert container.written_files() == []
        check_quiet(container)
