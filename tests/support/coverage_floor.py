"""Prints the branch coverage of each package from the data that `coverage run` left; fails below the floor.

Coverage is what was run of the statements and of the ways out of each branch, together, as `coverage report`
counts it. Only what runs inside pytest's own process counts: a process that a test starts is not measured.
"""

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import coverage

#: What every measured folder has to reach in the end.
AIM_PERCENT: Final = 90.0
#: What each is held to now. A floor below the aim only rises: raise it whenever the figure allows.
FLOORS: Final[Mapping[str, float]] = {
    "epp": AIM_PERCENT,
    "operator": AIM_PERCENT,
    "transport": AIM_PERCENT,
    "crds": AIM_PERCENT,
    "kubeclient": AIM_PERCENT,
}


@dataclass(frozen=True, slots=True)
class Figures:
    """What was run of one package, in counts."""

    covered: int
    total: int
    branches_covered: int
    branches: int

    @property
    def percent(self) -> float:
        """Return the share of statements and branches that ran; 100 for an empty package."""
        return 100.0 * self.covered / self.total if self.total else 100.0

    @property
    def branch_percent(self) -> float:
        """Return the share of branches alone."""
        return 100.0 * self.branches_covered / self.branches if self.branches else 100.0


def figures(report: Mapping[str, Any], package: str) -> Figures:
    """Return the sums over the files below the package's folder in a JSON report of coverage."""
    found = [each["summary"] for path, each in report["files"].items() if Path(path).parts[:1] == (package,)]
    branches = sum(each["num_branches"] for each in found)
    branches_covered = sum(each["covered_branches"] for each in found)
    return Figures(
        covered=branches_covered + sum(each["covered_lines"] for each in found),
        total=branches + sum(each["num_statements"] for each in found),
        branches_covered=branches_covered,
        branches=branches,
    )


def lines(report: Mapping[str, Any], floors: Mapping[str, float] = FLOORS) -> tuple[list[str], bool]:
    """Return what to print, and whether every package is at or above its floor."""
    told = [f"{'branch coverage':<18}{'all':>8}{'branches':>10}{'floor':>8}"]
    low = []
    for package, floor in floors.items():
        each = figures(report, package)
        told.append(f"  {package:<16}{each.percent:>7.1f}%{each.branch_percent:>9.1f}%{floor:>7.0f}%")
        if each.total == 0 or each.percent < floor:
            low.append(f"{package} ({each.percent:.1f} % of {floor:.0f} %)")
    if low:
        told.append(f"below the floor: {', '.join(low)}")
        told.append("see which lines: .venv/bin/coverage report --show-missing --skip-covered")
    return told, not low


def main() -> int:
    """Return the exit status."""
    measured = coverage.Coverage()
    measured.load()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "report.json"
        measured.json_report(outfile=str(path))
        report = json.loads(path.read_text())
    told, reached = lines(report)
    print("\n".join(told))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
