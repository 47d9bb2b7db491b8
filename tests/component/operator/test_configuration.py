"""Whether a picker uses its configuration, told on a real API server by pods that answer for a picker."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml
from typing_extensions import override

from inference_api.crd import INFERENCE_OBJECTIVE
from inference_api.names import METRICS_PORT, OBJECTIVE_GROUPS
from inference_api.offered import Offered, OfferedText, Uses, text_mark
from operator_cluster import CRDS, Cluster, Space, established, eventually, make_ready, picker, pool

OLDER = OBJECTIVE_GROUPS[1]


class StrictPicker(BaseHTTPRequestHandler):
    """Reads the pool's configuration from the API server, as a picker does, and refuses some."""

    space: Space

    def do_GET(self) -> None:
        """Say how the configuration stands."""
        text = (self.space.get("config", "llm-epp-config") or {})["data"]["config.yaml"]
        bad = [each["type"] for each in yaml.safe_load(text)["plugins"] if each["type"].startswith("no-")]
        error = f"plugins[0].type: {bad[0]} is not known" if bad else ""
        said = OfferedText(mark=text_mark(text), error=error, uses=Uses.LAST_GOOD if bad else Uses.OFFERED)
        body = Offered(config=said).model_dump_json().encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def answering(space: Space, address: str) -> Iterator[None]:
    handler = type("Handler", (StrictPicker,), {"space": space})
    server = ThreadingHTTPServer((address, METRICS_PORT), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_refused_configuration_is_told_until_it_is_corrected(space: Space) -> None:
    space.create("picker", picker("llm", config={"plugins": [{"type": "queue-scorer"}]}))
    space.create("pool", pool("llm"))
    eventually(lambda: space.condition("llm", "ConfigAccepted")[:2] == ("Unknown", "NotAsked"))
    container = {"name": "c", "image": "example.com/i"}
    model = {"metadata": {"name": "m0", "labels": {"app": "llm"}}, "spec": {"containers": [container]}}
    space.create("pod", model)
    with answering(space, "127.0.94.3"):
        eventually(lambda: [p for p in space.all("pod") if p["metadata"]["labels"]["app"] == "llm-epp"])
        make_ready(space, "llm")
        make_ready(space, "llm-epp", "127.0.94.3")
        eventually(lambda: space.condition("llm", "ConfigAccepted")[0] == "True")
        eventually(lambda: space.condition("llm", "Ready")[0] == "True")

        space.merge("picker", "llm", {"spec": {"config": {"plugins": [{"type": "no-such-scorer"}]}}})
        eventually(lambda: space.condition("llm", "ConfigAccepted")[:2] == ("False", "ConfigRefused"))
        assert "no-such-scorer" in space.condition("llm", "ConfigAccepted")[2]
        assert "last good" in space.condition("llm", "ConfigAccepted")[2]
        assert space.condition("llm", "Ready")[:2] == ("False", "ConfigRefused")
        eventually(lambda: space.word("llm") == "ConfigRefused")
        eventually(lambda: "ConfigRefused" in {event["reason"] for event in space.all("event")}, "an event")

        space.merge("picker", "llm", {"spec": {"config": {"plugins": [{"type": "kv-scorer"}]}}})
        eventually(lambda: space.condition("llm", "ConfigAccepted")[0] == "True")
        eventually(lambda: space.word("llm") == "Ready")


def test_objectives_of_the_older_group_are_counted(cluster: Cluster, space: Space) -> None:
    definition = INFERENCE_OBJECTIVE.definition()
    name = f"{definition['spec']['names']['plural']}.{OLDER}"
    definition["metadata"] = {
        "name": name,
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs"},
    }
    definition["spec"]["group"] = OLDER
    assert cluster.api.create(CRDS, definition).code == 201
    try:
        eventually(partial(established, cluster.api, name))
        space.create("pool", pool("llm"))
        body = {
            "apiVersion": f"{OLDER}/v1alpha2",
            "kind": "InferenceObjective",
            "metadata": {"name": "old"},
            "spec": {"poolRef": {"name": "llm"}, "priority": 3},
        }
        path = space.path("objective").replace(OBJECTIVE_GROUPS[0], OLDER)
        eventually(lambda: cluster.api.create(path, body).code in {201, 409})
        eventually(lambda: "Ignored: 1 InferenceObjectives" in space.condition("llm", "ResolvedRefs")[2])
        assert space.condition("llm", "ResolvedRefs")[0] == "True"
        assert "old" not in (space.get("config", "llm-epp-priorities") or {})["data"]["table.json"]
        assert cluster.api.request("DELETE", f"{path}/old").code == 200
        eventually(lambda: "Ignored" not in space.condition("llm", "ResolvedRefs")[2])
    finally:
        cluster.api.request("DELETE", f"{CRDS}/{name}")
