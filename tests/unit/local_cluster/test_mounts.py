"""The plan of a container's root."""

import posixpath

from local_cluster.node.mounts import Mount, plan_root


class FakeHost:
    """A host with the given plain paths and links."""

    def __init__(self, *plain: str, links: dict[str, str] | None = None) -> None:
        self._plain = {"/", *plain}
        self._links = links or {}

    def real_path(self, path: str) -> str:
        for link, target in self._links.items():
            if path == link or path.startswith(f"{link}/"):
                return target + path.removeprefix(link)
        return path

    def is_plain(self, path: str) -> bool:
        return path in self._plain


def mount(target: str, source: str = "/src") -> Mount:
    return Mount(source, target, read_only=True)


def test_a_mount_point_that_exists_needs_nothing_made_but_the_root() -> None:
    plan = plan_root([mount("/srv/data")], FakeHost("/srv", "/srv/data"))
    assert plan.made == ("/",)


def test_directories_that_lack_the_next_step_are_made_parents_first() -> None:
    plan = plan_root([mount("/etc/headroom/config")], FakeHost("/etc"))
    assert plan.made == ("/", "/etc", "/etc/headroom")


def test_a_new_top_directory_only_needs_the_root() -> None:
    assert plan_root([mount("/models")], FakeHost()).made == ("/",)


def test_links_on_the_way_are_followed() -> None:
    host = FakeHost("/run", "/var", links={"/var/run": "/run"})
    plan = plan_root([mount("/var/run/secrets/kubernetes.io/serviceaccount")], host)
    assert plan.mounts[0].target == "/run/secrets/kubernetes.io/serviceaccount"
    assert "/run/secrets" in plan.made


def test_a_link_in_the_place_of_a_file_is_replaced_not_followed() -> None:
    """/etc/resolv.conf is a link on many hosts: its directory is created in the root, without the link."""
    plan = plan_root([mount("/etc/resolv.conf")], FakeHost("/etc"))
    assert plan.mounts[0].target == "/etc/resolv.conf"
    assert "/etc" in plan.made


def test_outer_mounts_come_first_and_make_room_for_inner_ones() -> None:
    plan = plan_root([mount("/data/inner/deep"), mount("/data")], FakeHost("/data"))
    assert [each.target for each in plan.mounts] == ["/data", "/data/inner/deep"]
    assert plan.made == ("/",)


def test_the_later_of_two_mounts_at_one_place_wins() -> None:
    plan = plan_root([mount("/data", "/first"), mount("/data/", "/second")], FakeHost("/data"))
    assert [each.source for each in plan.mounts] == ["/second"]


def test_every_made_directory_comes_after_its_parent() -> None:
    targets = ["/a/b/c", "/x", "/etc/resolv.conf", "/a/d/e/f"]
    made = plan_root([mount(each) for each in targets], FakeHost("/etc")).made
    assert all(posixpath.dirname(each) in made[:index] for index, each in enumerate(made) if each != "/")
