"""Supervision of a node's programs, with small programs in their place."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from local_cluster.errors import StartError
from local_cluster.kubelet.parts import Parts, Patience
from local_cluster.kubelet.record import PARTS_FILE, PartState, parts_of

QUICK = Patience(shortest_backoff=0.01, longest_backoff=0.05, most_ends=4, check_every=0.05, hung=0.3)
LIMIT_S = 30.0


class Node:
    """Parts in a folder as a cluster has them."""

    def __init__(self, folder: Path, patience: Patience = QUICK) -> None:
        self.folder = folder
        (folder / PARTS_FILE).parent.mkdir()
        self.parts = Parts(folder, folder / PARTS_FILE, os.environ, patience)

    def state(self) -> PartState:
        (state,) = parts_of(self.folder)
        return state

    def until(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not happened():
            self.parts.look_after()
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def add(self, script: str, *, healthy: bool = True) -> None:
        noted = f"echo $$ > {self.folder}/pid; {script}"
        self.parts.add("part", ("/bin/sh", "-c", noted), lambda: healthy)

    def kill(self) -> None:
        file = self.folder / "pid"
        self.until(lambda: file.exists() and bool(file.read_text().strip()))
        os.kill(int(file.read_text()), signal.SIGKILL)
        file.unlink()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.parts.kill()


def test_a_killed_part_is_started_again_and_counted(node: Node) -> None:
    node.add("exec sleep 3600")
    assert node.state() == PartState("part", 1, "", runs=True)
    node.kill()
    node.until(lambda: node.state().starts == 2)
    assert node.state() == PartState("part", 2, "ended with code -9", runs=True)


def test_a_part_that_does_not_answer_is_killed_and_started_again(node: Node) -> None:
    node.add("exec sleep 3600", healthy=False)
    node.until(lambda: node.state().starts == 2)
    assert "did not answer" in node.state().last_end


def test_a_part_that_keeps_ending_ends_the_node_and_says_why(node: Node) -> None:
    node.add("echo no such device; exit 3")
    with pytest.raises(StartError, match=r"part ended with code 3, 4 times in a row: .*no such device"):
        node.until(lambda: False)


def test_ends_far_apart_do_not_add_up(tmp_path: Path) -> None:
    node = Node(tmp_path, replace(QUICK, steady=0.0))
    node.add("exit 0")
    node.until(lambda: node.state().starts > QUICK.most_ends + 1)
    node.parts.kill()
