"""What the picker says of itself, name by name."""

import pytest

from endpoint_picker.health import SERVICES, Health
from inference_api.names import EXT_PROC_SERVICE, HEALTH_SERVICE

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
FOLLOWERS = ("", "readiness", HEALTH_SERVICE, EXT_PROC_SERVICE)


def states(health: Health) -> dict[str, int]:
    return {name: health.service.state(name) for name in (*FOLLOWERS, "liveness")}


def expected(state: int) -> dict[str, int]:
    return {**dict.fromkeys(FOLLOWERS, state), "liveness": SERVING}


def test_liveness_serves_while_the_process_answers_the_rest_follows_the_pool() -> None:
    health = Health()
    assert states(health) == expected(NOT_SERVING)
    health.synced()
    assert states(health) == expected(SERVING)
    assert health.ready
    health.drain()
    assert states(health) == expected(NOT_SERVING)
    assert health.draining
    assert not health.ready


def test_a_pool_that_is_known_late_does_not_undo_a_drain() -> None:
    health = Health()
    health.drain()
    health.synced()
    assert states(health) == expected(NOT_SERVING)


@pytest.mark.parametrize("name", ["x", "Liveness", "x" * 300])
def test_other_names_are_unknown(name: str) -> None:
    assert name not in SERVICES
    assert Health().service.state(name) == SERVICE_UNKNOWN
