"""A user's configuration that the picker refuses: told by the conditions, while requests are served."""

from typing import Any

from headroom_cli.demo.api import wait_for
from headroom_cli.demo.coexistence import SMALL_WITH_PROXY, applied, pool, server_deployment, user_picker
from headroom_cli.demo.load import Load
from headroom_cli.demo.scenarios import LIMIT_S
from headroom_cli.demo.stage import Stage

NAME = "tuned"


def configured(plugin: str) -> dict[str, Any]:
    return {"config": {"plugins": [{"type": plugin}]}, **SMALL_WITH_PROXY}


def await_reason(stage: Stage, kind: str, status: str, reason: str) -> str:
    """Wait until the condition says so; return its message."""

    def said() -> str:
        found = stage.condition(kind) or {}
        met = (found.get("status"), found.get("reason")) == (status, reason)
        return str(found["message"]) if met else ""

    message, _ = wait_for(f"{kind}={status}, {reason}", said, limit_s=LIMIT_S)
    return message


def serve(stage: Stage) -> None:
    with Load(stage.proxy_url(), in_flight=4) as load:
        load.await_served(20)
        assert all(sent.ok for sent in load.stop())


def give(stage: Stage, plugin: str) -> None:
    spec = {"spec": configured(plugin)}
    stage.api.patch(stage.path("EndpointPicker", NAME), spec)


def test_a_refused_configuration_is_told_and_requests_are_served(stage: Stage) -> None:
    tuned = stage.beside(NAME)
    manifests = [user_picker(NAME, configured("no-such-scorer")), pool(NAME), server_deployment(stage, NAME)]
    with applied(tuned, manifests):
        tuned.await_condition("EndpointsReady", "True", limit_s=2 * LIMIT_S)
        message = await_reason(tuned, "ConfigAccepted", "False", "ConfigRefused")
        assert "no-such-scorer" in message
        assert "serves with the default" in message
        await_reason(tuned, "Ready", "False", "ConfigRefused")
        serve(tuned)

        give(tuned, "random-picker")
        await_reason(tuned, "ConfigAccepted", "True", "ConfigAccepted")
        tuned.await_condition("Ready", "True", limit_s=LIMIT_S)
        serve(tuned)

        give(tuned, "no-such-picker")
        message = await_reason(tuned, "ConfigAccepted", "False", "ConfigRefused")
        assert "no-such-picker" in message
        assert "serves with the last good one" in message
        serve(tuned)
