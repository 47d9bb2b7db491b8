from typing import Any

from inference_operator.core.cache import Cache
from inference_operator.core.event_mapping import keys_of
from inference_operator.core.kinds import CONFIG_MAP, OBJECTIVES, PICKER, POOL, SERVICE, Kind
from inference_operator.core.repair_backoff import FORGIVEN_AFTER, FREE_REPAIRS, LONGEST_PAUSE, RepairBackoff
from observations import picker_body, pool_body


def known(*bodies: tuple[Kind, dict[str, Any]]) -> Cache:
    cache = Cache()
    for kind, body in bodies:
        cache.put(kind, body)
    return cache


def objective(name: str, pool: str, version: int, **ref: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "ns", "resourceVersion": str(version)},
        "spec": {"poolRef": {"name": pool, **ref}},
    }


def test_a_pool_wakes_itself_and_its_rivals() -> None:
    cache = known((POOL, pool_body("a", "shared")), (POOL, pool_body("b", "shared")), (POOL, pool_body("c")))
    assert keys_of(POOL, pool_body("a", "shared"), cache) == {("ns", "a"), ("ns", "b")}


def test_a_pool_that_leaves_a_name_wakes_those_it_leaves_it_to() -> None:
    cache = known((POOL, pool_body("a", "shared")), (POOL, pool_body("b", "shared")))
    assert ("ns", "b") in keys_of(POOL, pool_body("a", "own"), cache)


def test_an_objective_that_moves_wakes_both_pools() -> None:
    kind = OBJECTIVES[0]
    cache = known((kind, objective("gold", "old", 1)))
    assert keys_of(kind, objective("gold", "new", 2), cache) == {("ns", "old"), ("ns", "new")}


def test_an_objective_of_another_group_wakes_nobody() -> None:
    body = objective("gold", "llm", 1, group="inference.networking.x-k8s.io")
    assert keys_of(OBJECTIVES[0], body, Cache()) == set()


def test_a_child_wakes_the_pool_it_was_made_for() -> None:
    body = {"metadata": {"name": "x", "namespace": "ns", "annotations": {"headroom.dev/pool-name": "llm"}}}
    assert keys_of(CONFIG_MAP, body, Cache()) == {("ns", "llm")}


def test_a_service_wakes_every_pool_that_names_it() -> None:
    cache = known((POOL, pool_body("a", "shared")))
    body = {"metadata": {"name": "shared", "namespace": "ns"}}
    assert keys_of(SERVICE, body, cache) == {("ns", "a")}


def test_an_endpoint_picker_wakes_the_pool_of_its_name() -> None:
    assert keys_of(PICKER, picker_body("llm"), Cache()) == {("ns", "llm")}


def test_repairs_in_a_row_meet_growing_pauses_until_there_is_peace() -> None:
    backoff = RepairBackoff()
    key = ("ns", "llm")
    pauses = []
    for turn in range(FREE_REPAIRS + 8):
        pauses.append(backoff.repaired(key, float(turn)))
        backoff.quiet(key, turn + 0.5)  # as a Deployment's own events bring about between two repairs
    assert pauses[:FREE_REPAIRS] == [0.0] * FREE_REPAIRS
    assert pauses[FREE_REPAIRS : FREE_REPAIRS + 3] == [2.0, 4.0, 8.0]
    assert pauses[-1] == LONGEST_PAUSE
    last = FREE_REPAIRS + 7.0
    assert backoff.repaired(key, last + FORGIVEN_AFTER) == 0.0
    backoff.forget(key)
    assert backoff.repaired(key, last + FORGIVEN_AFTER) == 0.0
