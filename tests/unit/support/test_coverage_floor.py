"""Figures of branch coverage, and the floor that a package is held to."""

from typing import Any

import pytest

from coverage_floor import Figures, figures, lines


def file(statements: int, run: int, branches: int = 0, taken: int = 0) -> dict[str, Any]:
    return {
        "summary": {
            "num_statements": statements,
            "covered_lines": run,
            "num_branches": branches,
            "covered_branches": taken,
        }
    }


REPORT = {
    "files": {
        "epp/endpoint_picker/app.py": file(10, 9, 4, 2),
        "epp/endpoint_picker/tls.py": file(6, 6),
        "epp_like/other.py": file(100, 0),
        "crds/inference_api/crd.py": file(10, 9),
    }
}


def test_a_package_is_the_sum_of_its_files() -> None:
    assert figures(REPORT, "epp") == Figures(covered=17, total=20, branches_covered=2, branches=4)
    assert figures(REPORT, "epp").percent == pytest.approx(85)
    assert figures(REPORT, "epp").branch_percent == pytest.approx(50)


@pytest.mark.parametrize(
    ("floors", "reached", "said"),
    [
        ({"crds": 90.0}, True, "90.0%"),
        ({"crds": 90.0, "epp": 86.0}, False, "below the floor: epp (85.0 % of 86 %)"),
        ({"crds": 90.0, "epp": 85.0}, True, "85.0%"),
        pytest.param({"gone": 0.0}, False, "below the floor: gone", id="nothing was measured"),
    ],
)
def test_a_package_below_its_floor_is_named(floors: dict[str, float], reached: bool, said: str) -> None:
    told, ok = lines(REPORT, floors)
    assert ok is reached
    assert said in "\n".join(told)
