from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference_operator.core.cache import Cache
from inference_operator.core.kinds import CONFIG_MAP, OBJECTIVES, POOL, Kind, Object
from observations import pool_body


def thing(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": name, "resourceVersion": str(version)}}


def held(cache: Cache) -> dict[str, str]:
    return {b["metadata"]["name"]: b["metadata"]["resourceVersion"] for b in cache.all(CONFIG_MAP)}


def test_only_news_is_news() -> None:
    cache = Cache()
    assert cache.put(CONFIG_MAP, thing("a", 5))
    assert not cache.put(CONFIG_MAP, thing("a", 5))
    assert not cache.put(CONFIG_MAP, thing("a", 4))
    assert cache.put(CONFIG_MAP, thing("a", 6))
    assert held(cache) == {"a": "6"}


def test_a_late_event_does_not_bring_back_what_was_deleted() -> None:
    cache = Cache()
    cache.put(CONFIG_MAP, thing("a", 5))
    assert cache.drop(CONFIG_MAP, thing("a", 7))
    assert not cache.put(CONFIG_MAP, thing("a", 6))
    assert cache.put(CONFIG_MAP, thing("a", 8))


def test_a_late_deletion_does_not_take_a_successor() -> None:
    cache = Cache()
    cache.put(CONFIG_MAP, thing("a", 9))
    assert not cache.drop(CONFIG_MAP, thing("a", 7))
    assert held(cache) == {"a": "9"}


def test_a_deletion_that_comes_before_the_answer_to_the_creation_is_news() -> None:
    cache = Cache()
    assert cache.drop(CONFIG_MAP, thing("a", 8))
    assert not cache.put(CONFIG_MAP, thing("a", 7))
    assert held(cache) == {}
    assert not cache.drop(CONFIG_MAP, thing("a", 8))


def test_a_full_list_replaces_all_but_what_is_newer() -> None:
    cache = Cache()
    for name, version in (("gone", 3), ("old", 4), ("newer", 20), ("same", 5)):
        cache.put(CONFIG_MAP, thing(name, version))
    listed = [thing("old", 8), thing("same", 5), thing("added", 9)]
    changed = cache.replace(CONFIG_MAP, listed, 10)
    assert held(cache) == {"old": "8", "newer": "20", "same": "5", "added": "9"}
    assert changed == {("ns", "gone"), ("ns", "old"), ("ns", "added")}


def test_a_list_read_before_a_deletion_does_not_undo_it() -> None:
    cache = Cache()
    cache.put(CONFIG_MAP, thing("a", 5))
    cache.drop(CONFIG_MAP, thing("a", 12))
    cache.replace(CONFIG_MAP, [thing("a", 5)], 10)
    assert held(cache) == {}


def objective(name: str, pool: str, version: int) -> Object:
    return {**thing(name, version), "spec": {"poolRef": {"name": pool}}}


def naming(cache: Cache, kind: Kind, name: str) -> list[str]:
    return sorted(body["metadata"]["name"] for body in cache.naming(kind, "ns", name))


def test_objects_are_found_by_the_pool_that_they_name() -> None:
    cache, kind = Cache(), OBJECTIVES[0]
    cache.put(kind, objective("a", "one", 1))
    cache.put(kind, objective("b", "two", 2))
    assert naming(cache, kind, "one") == ["a"]
    cache.put(kind, objective("a", "two", 3))
    assert naming(cache, kind, "one") == []
    assert naming(cache, kind, "two") == ["a", "b"]
    cache.drop(kind, objective("a", "two", 4))
    cache.forget(kind, "ns", "b")
    assert naming(cache, kind, "two") == []


def test_pools_are_found_by_their_picker_and_children_by_annotation_or_owner() -> None:
    cache = Cache()
    cache.put(POOL, pool_body("one", "shared"))
    cache.put(POOL, pool_body("two", "shared"))
    assert naming(cache, POOL, "shared") == ["one", "two"]
    annotated, owned = thing("annotated", 1), thing("owned", 1)
    annotated["metadata"]["annotations"] = {"headroom.dev/pool-name": "one"}
    owned["metadata"]["ownerReferences"] = [{"kind": "InferencePool", "name": "one"}]
    cache.put(CONFIG_MAP, annotated)
    cache.put(CONFIG_MAP, owned)
    assert naming(cache, CONFIG_MAP, "one") == ["annotated", "owned"]
    cache.clear(CONFIG_MAP)
    assert naming(cache, CONFIG_MAP, "one") == []


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "drop", "list"]), st.sampled_from("abc"), st.sampled_from(["x", "y"])),
    max_size=30,
)


@given(STEPS)
def test_the_index_agrees_with_what_is_held(steps: list[tuple[str, str, str]]) -> None:
    cache, kind = Cache(), OBJECTIVES[0]
    for version, (what, name, pool) in enumerate(steps, 1):
        if what == "put":
            cache.put(kind, objective(name, pool, version))
        elif what == "drop":
            cache.drop(kind, objective(name, pool, version))
        else:
            cache.replace(kind, [objective(name, pool, version)], version)
    for pool in ("x", "y"):
        held_of = [b["metadata"]["name"] for b in cache.all(kind) if b["spec"]["poolRef"]["name"] == pool]
        assert naming(cache, kind, pool) == sorted(held_of)
