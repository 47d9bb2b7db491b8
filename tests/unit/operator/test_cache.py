from typing import Any

from inference_operator.cache import Cache
from inference_operator.kinds import CONFIG_MAP


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
