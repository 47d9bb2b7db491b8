"""The promises of the product, each brought about on the running cluster.

Figures that count are held to their goals; times are only printed (`make demo CHECK=1` judges them).
"""

import pytest

from headroom_cli.demo import coexistence, scenarios
from headroom_cli.demo.api import progress
from headroom_cli.demo.main import SCENARIOS
from headroom_cli.demo.requests import show_requests
from headroom_cli.demo.scenarios import Scenario
from headroom_cli.demo.stage import Stage

KEEP_THE_POOL = tuple(each for each in SCENARIOS if each is not scenarios.delete_pool)


def judge(scenario: Scenario, stage: Stage) -> None:
    for measured in scenario(stage):
        progress(f"{measured.name}: {measured.value:.2f} {measured.unit}")
        if measured.unit != "s":
            assert measured.within(1.0), measured


@pytest.mark.parametrize("scenario", KEEP_THE_POOL, ids=lambda scenario: scenario.__name__)
def test_promise(scenario: Scenario, stage: Stage) -> None:
    judge(scenario, stage)


def test_requests_are_explained(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    show_requests(stage)
    table = capsys.readouterr().out
    assert table.count(" 200 ") == 6
    assert "prefix hit" in table


def test_a_deleted_pool_takes_its_children_along(stage: Stage) -> None:
    doomed = stage.beside("doomed")
    manifests = [
        coexistence.user_picker("doomed", coexistence.SMALL_WITH_PROXY),
        coexistence.pool("doomed"),
    ]
    with coexistence.applied(doomed, manifests):
        doomed.await_condition("PickerReady", "True", limit_s=scenarios.LIMIT_S)
        judge(scenarios.delete_pool, doomed)
