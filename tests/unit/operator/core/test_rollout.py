from typing import Any

import pytest

from inference_operator.core import reasons
from inference_operator.core.rollout import judge_deployment, rolled_out


def deployment(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "d", "generation": 2},
        "spec": {"replicas": 1},
        "status": {"observedGeneration": 2, **status},
    }


OLD_SERVES = {"replicas": 2, "readyReplicas": 1, "updatedReplicas": 1}


@pytest.mark.parametrize(
    ("status", "done"),
    [
        pytest.param({"replicas": 1, "readyReplicas": 1, "updatedReplicas": 1}, True, id="all new"),
        pytest.param({"readyReplicas": 1, "updatedReplicas": 1}, True, id="a status without replicas"),
        pytest.param(OLD_SERVES, False, id="only the old one is ready"),
        pytest.param({"replicas": 1, "updatedReplicas": 1}, False, id="not ready"),
        pytest.param({"replicas": 1, "readyReplicas": 1}, False, id="not updated"),
        pytest.param(
            {"observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1},
            False,
            id="the newest template is not seen yet",
        ),
    ],
)
def test_a_rollout_is_over_when_only_ready_pods_of_the_newest_template_are_left(
    status: dict[str, Any], done: bool
) -> None:
    assert rolled_out(deployment(**status)) is done
    judged = judge_deployment("d", deployment(**status), (), reasons.PICKER_READY)
    assert judged.status == ("True" if done else "False")


def test_a_new_pod_that_fails_is_told_while_the_old_one_serves() -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    pod = {
        "metadata": {"name": "d-1", "labels": {"app": "d"}},
        "status": {"containerStatuses": [{"name": "epp", "state": {"waiting": waiting}}]},
    }
    judged = judge_deployment("d", deployment(**OLD_SERVES), (pod,), reasons.PICKER_READY)
    assert (judged.status, judged.finding.reason) == ("False", "ImageNotPulled")
    judged = judge_deployment("d", deployment(**OLD_SERVES), (), reasons.PICKER_READY)
    assert judged.finding.reason == "Progressing"
