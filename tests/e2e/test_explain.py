"""`headroom explain` and the kubectl plugin on the demo's pool: a request through the proxy is explained."""

import json
import os
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from headroom_cli.demo.load import MODEL, Once
from headroom_cli.demo.stage import Stage
from inference_api.names import OBJECTIVE_HEADER, REQUEST_ID_HEADER
from local_cluster.tools import search_path
from model_server_sim.client import Ask, InferenceClient, Result


def run(stage: Stage, *command: str) -> subprocess.CompletedProcess[str]:
    own = str(Path(sys.executable).parent)
    return subprocess.run(
        [*command, "--kubeconfig", str(stage.cluster.kubeconfig)],
        env={**os.environ, "PATH": os.pathsep.join((own, search_path()))},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("command", [("headroom",), ("kubectl", "headroom")], ids=" ".join)
def test_a_request_through_the_proxy_is_explained(stage: Stage, command: tuple[str, ...]) -> None:
    request_id = f"explained-{len(command)}"

    def send(client: InferenceClient) -> Coroutine[Any, Any, Result]:
        headers = {REQUEST_ID_HEADER: request_id, OBJECTIVE_HEADER: "chat"}
        return client.send(Ask(model=MODEL, prompt="Explain this.", headers=headers))

    assert Once(stage.proxy_url())(send).ok
    done = run(stage, *command, "explain", stage.pool, request_id, "-o", "json")
    assert done.returncode == 0, done.stderr
    (answer,) = json.loads(done.stdout)
    assert answer["picker"] == stage.picker_pod()["metadata"]["name"]
    (decision,) = answer["decisions"]
    assert (decision["model"], decision["objective"], decision["outcome"]) == (MODEL, "chat", "picked")
    assert decision["endpoint"] in {each["endpoint"] for each in decision["endpoints"]}
    assert all(each["metricsAgeSeconds"] is not None for each in decision["endpoints"])
    shown = run(stage, *command, "explain", stage.pool, request_id)
    assert decision["endpoint"] in shown.stdout
