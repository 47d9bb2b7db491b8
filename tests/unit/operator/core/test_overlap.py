"""Which installation works where several want to, from their Leases."""

from dataclasses import replace

import pytest

from inference_operator.core.overlap import (
    Mark,
    Record,
    Scope,
    Sightings,
    Standing,
    is_superseded,
    lease_body,
    marks_to_write,
    oldest,
    outranks,
    read_record,
    shared,
    stand,
    unchanged,
    widens,
)

NONE: frozenset[str] = frozenset()


def record(name: str, created: int, scope: Scope = (), **more: object) -> Record:
    return replace(
        Record(
            namespace=f"{name}-system",
            name="headroom-operator",
            uid=f"uid-{name}",
            created=f"2026-12-01T00:00:{created:02d}Z",
            account="headroom-operator",
            scope=scope,
            renewal="r1",
        ),
        **more,  # type: ignore[arg-type]
    )


OLD, YOUNG = record("old", 1), record("young", 2)


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        pytest.param((), (), (), id="both have all"),
        pytest.param((), ("a", "b"), ("a", "b"), id="one has all"),
        pytest.param(("a", "b"), ("b", "c"), ("b",), id="some in common"),
        pytest.param(("a",), ("b",), None, id="disjoint"),
    ],
)
def test_namespaces_in_common(one: Scope, other: Scope, common: Scope | None) -> None:
    assert shared(one, other) == shared(other, one) == common


@pytest.mark.parametrize(
    ("now", "before", "wider"),
    [
        ((), (), False),
        ((), ("a",), True),
        (("a",), (), False),
        (("a", "b"), ("a",), True),
        (("a",), ("a", "b"), False),
    ],
)
def test_a_scope_widens_when_it_has_a_namespace_that_it_had_not(
    now: Scope, before: Scope, wider: bool
) -> None:
    assert widens(now, before) is wider


def test_the_older_works_everywhere_and_the_younger_nowhere() -> None:
    assert stand(OLD, [YOUNG]) == Standing(younger={"young-system/headroom-operator": ()})
    aside = stand(YOUNG, [OLD])
    assert aside == Standing(aside={"old-system/headroom-operator": ()})
    assert aside.owner("any") == "old-system/headroom-operator"


def test_only_the_namespaces_in_common_are_left_to_the_older() -> None:
    standing = stand(replace(YOUNG, scope=("b", "c")), [replace(OLD, scope=("a", "b"))])
    assert standing.owner("b") == "old-system/headroom-operator"
    assert standing.owner("c") == ""


def test_disjoint_installations_do_not_know_each_other() -> None:
    one, other = replace(OLD, scope=("a",)), replace(YOUNG, scope=("b",))
    assert stand(one, [other]) == stand(other, [one]) == Standing()


def test_two_leases_of_the_same_second_are_ordered_by_uid_from_both_sides() -> None:
    one, other = record("a", 1), record("b", 1)
    assert outranks(one, other, NONE)
    assert not outranks(other, one, NONE)


def test_an_installation_without_a_lease_is_the_youngest() -> None:
    unseen = replace(OLD, uid="", created="")
    assert stand(unseen, [YOUNG]).owner("a") == "young-system/headroom-operator"


def test_a_lease_says_what_was_written_into_it() -> None:
    mine = replace(
        YOUNG, scope=("a", "b"), duration=30.0, supersedes=frozenset({Mark(uid="uid-old", renewal="r1")})
    )
    body = lease_body(
        mine, {"old-system/x": ("b",)}, role="team-headroom-epp", version="0.1.0", holder="pod-1"
    )
    notes = body["metadata"]["annotations"]
    assert notes["headroom.dev/stands-aside"] == "b: old-system/x"
    assert notes["headroom.dev/picker-cluster-role"] == "team-headroom-epp"
    body["metadata"] |= {"uid": mine.uid, "creationTimestamp": mine.created}
    assert read_record(body) == mine


@pytest.mark.parametrize("seconds", [None, "long", -5, 0, 10**12, True])
def test_a_duration_that_anybody_may_have_written_is_bounded(seconds: object) -> None:
    found = read_record({"metadata": {"name": "x"}, "spec": {"leaseDurationSeconds": seconds}})
    assert 3.0 <= found.duration <= 600.0


def test_of_very_many_records_the_oldest_count() -> None:
    leases = [
        {"metadata": {"name": f"l{n}", "creationTimestamp": f"2026-12-01T00:{n // 60:02d}:{n % 60:02d}Z"}}
        for n in range(300)
    ]
    kept = oldest(reversed(leases))
    assert (len(kept), kept[0].name) == (256, "l0")


class TestSilence:
    """An installation that no longer renews its Lease."""

    def test_it_counts_for_its_duration_by_the_readers_clock(self) -> None:
        sightings = Sightings()
        for now in (100.0, 104.0, 108.0):
            sightings.see([replace(OLD, duration=10.0)], now)
        assert sightings.alive(109.9)
        assert not sightings.alive(110.0)
        assert sightings.silent(110.0)

    def test_time_in_which_the_reader_read_nothing_does_not_count(self) -> None:
        sightings = Sightings()
        sightings.see([replace(OLD, duration=10.0)], 100.0)
        sightings.see([replace(OLD, duration=10.0)], 112.0)
        assert sightings.alive(112.0)

    def test_a_renewal_makes_it_count_again(self) -> None:
        sightings = Sightings()
        sightings.see([replace(OLD, duration=10.0)], 100.0)
        sightings.see([replace(OLD, duration=10.0, renewal="r2")], 120.0)
        assert sightings.alive(129.0)

    def test_a_lease_that_was_deleted_counts_as_long_as_one_that_is_not_renewed(self) -> None:
        sightings = Sightings()
        sightings.see([replace(OLD, duration=10.0)], 100.0)
        sightings.see([], 105.0)
        assert sightings.alive(109.0)
        sightings.see([], 111.0)
        assert not sightings.alive(111.0)
        assert not sightings.silent(111.0)

    def test_the_younger_marks_the_silent_lease_and_outranks_it_from_then_on(self) -> None:
        marks = marks_to_write(YOUNG, [OLD], silent=[OLD])
        assert marks == {Mark(uid="uid-old", renewal="r1")}
        taken_over = replace(YOUNG, supersedes=marks)
        assert not outranks(OLD, taken_over, unchanged(marks, [OLD]))
        assert outranks(taken_over, OLD, NONE)

    def test_a_renewal_between_marking_and_reading_again_leaves_the_older_its_rank(self) -> None:
        awake = replace(OLD, renewal="r2")
        marks = marks_to_write(YOUNG, [OLD], silent=[OLD])
        trusted = unchanged(marks, [awake])
        assert trusted == NONE
        assert outranks(awake, replace(YOUNG, supersedes=marks), trusted)

    def test_the_silent_one_finds_itself_superseded_when_it_comes_back(self) -> None:
        taken_over = replace(YOUNG, supersedes=frozenset({Mark(uid="uid-old", renewal="r1")}))
        assert is_superseded(OLD, [taken_over])
        made_anew = replace(OLD, uid="uid-old-2", created="2026-12-01T00:00:09Z")
        assert not is_superseded(made_anew, [taken_over])
        assert stand(made_anew, [taken_over]).owner("a") == "young-system/headroom-operator"
        assert stand(taken_over, [made_anew], frozenset({"uid-old"})).aside == {}

    def test_marks_of_leases_that_are_gone_are_dropped(self) -> None:
        taken_over = replace(YOUNG, supersedes=frozenset({Mark(uid="uid-old", renewal="r1")}))
        assert marks_to_write(taken_over, [], silent=[]) == frozenset()

    def test_a_silent_one_elsewhere_or_younger_is_not_marked(self) -> None:
        elsewhere = replace(OLD, scope=("b",))
        assert marks_to_write(replace(YOUNG, scope=("a",)), [elsewhere], silent=[elsewhere]) == frozenset()
        assert marks_to_write(OLD, [YOUNG], silent=[YOUNG]) == frozenset()
