"""Reading and writing API objects, and keeping conditions."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import ValidationError

from inference_api.endpoint_picker import EndpointPicker, EndpointPickerStatus, ProxyMode
from inference_api.inference_objective import InferenceObjective
from inference_api.inference_pool import InferencePool
from inference_api.meta import Condition, api_time, carry_times, find_condition

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)


def pool(**spec: Any) -> dict[str, Any]:
    return {"spec": {"selector": {"matchLabels": {"app": "x"}}, "targetPorts": [{"number": 8000}], **spec}}


def condition(
    status: str = "True", *, kind: str = "Ready", reason: str = "Fine", at: datetime = NOON
) -> Condition:
    values = {"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": at}
    return Condition.model_validate(values)


def test_a_pool_may_have_no_picker() -> None:
    assert InferencePool.model_validate(pool()).spec.endpoint_picker_ref is None


def test_what_a_newer_api_adds_is_passed_over() -> None:
    newer = pool(appProtocol="kubernetes.io/h3", notYetKnown={"a": 1}) | {"status": {"soon": True}}

    read = InferencePool.model_validate(newer)

    assert read.spec.app_protocol == "kubernetes.io/h3"


def test_defaults_are_those_of_the_api_server() -> None:
    ref = InferencePool.model_validate(pool(endpointPickerRef={"name": "epp"})).spec.endpoint_picker_ref

    assert ref is not None
    assert (ref.kind, ref.group, ref.failure_mode, ref.port) == ("Service", "", "FailClose", None)


def test_an_objective_without_spec_can_be_read() -> None:
    assert InferenceObjective.model_validate({"metadata": {"name": "x"}}).spec is None


def test_an_empty_picker_means_no_proxy_and_not_paused() -> None:
    spec = EndpointPicker.model_validate({}).spec

    assert (spec.paused, spec.proxy.mode, spec.proxy.replicas) == (False, ProxyMode.NONE, 1)


def test_an_unknown_proxy_mode_is_an_error_and_not_silently_none() -> None:
    with pytest.raises(ValidationError, match="mode"):
        EndpointPicker.model_validate({"spec": {"proxy": {"mode": "Sidecar"}}})


def test_a_status_is_written_in_camel_case_without_what_is_absent() -> None:
    status = EndpointPickerStatus(conditions=(condition(),), ready_replicas=0)

    assert status.to_json() == {
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Fine",
                "message": "",
                "lastTransitionTime": "2026-01-01T12:00:00Z",
            }
        ],
        "readyReplicas": 0,
    }
    assert EndpointPickerStatus.model_validate(status.to_json()) == status


def test_a_condition_keeps_its_time_while_its_status_holds() -> None:
    carried = carry_times([condition(reason="StillFine", at=LATER)], [condition()])

    assert carried == (condition(reason="StillFine", at=NOON),)


def test_a_condition_takes_the_new_time_when_its_status_turns() -> None:
    assert carry_times([condition("False", at=LATER)], [condition("True")]) == (condition("False", at=LATER),)


def test_a_new_condition_takes_the_new_time_and_an_old_one_goes() -> None:
    carried = carry_times([condition(kind="Accepted", at=LATER)], [condition(kind="Ready")])

    assert carried == (condition(kind="Accepted", at=LATER),)


def test_a_condition_is_found_by_its_type() -> None:
    held = (condition(kind="Accepted"), condition(kind="Ready"))

    assert find_condition(held, "Ready") == held[1]
    assert find_condition(held, "Absent") is None


def test_times_are_whole_seconds_of_utc() -> None:
    moment = datetime(2026, 1, 1, 14, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=2)))

    assert api_time(moment) == NOON
