"""Prints the branch coverage of each package from the data that `coverage run` left; fails below the floor.

Coverage is the share of statements and branch exits that ran, together, as `coverage report` counts it. Only
code in pytest's own process counts: a process that a test starts is not measured.
"""

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import coverage

#: The floor that every measured folder has to reach in the end.
AIM_PERCENT: Final = 90.0
#: The present floors. One below the aim is only ever raised: raise it whenever the figure allows.
FLOORS: Final[Mapping[str, float]] = {
    "epp": AIM_PERCENT,
    "operator": 86.0,
    "transport": AIM_PERCENT,
    "crds": AIM_PERCENT,
    "kubeclient": AIM_PERCENT,
}


@dataclass(frozen=True, slots=True)
class Figures:
    """Numbers of statements and branch exits of one package, and of those that ran."""

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
    """Return the lines to print, and whether every package is at or above its floor."""
    printed = [f"{'branch coverage':<18}{'all':>8}{'branches':>10}{'floor':>8}"]
    low = []
    for package, floor in floors.items():
        each = figures(report, package)
        printed.append(f"  {package:<16}{each.percent:>7.1f}%{each.branch_percent:>9.1f}%{floor:>7.0f}%")
        if each.total == 0 or each.percent < floor:
            low.append(f"{package} ({each.percent:.1f} % of {floor:.0f} %)")
    if low:
        printed.append(f"below the floor: {', '.join(low)}")
        printed.append("see which lines: .venv/bin/coverage report --show-missing --skip-covered")
    return printed, not low


def main() -> int:
    """Print the table; return 0 when every package is at or above its floor, else 1."""
    measured = coverage.Coverage()
    measured.load()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "report.json"
        measured.json_report(outfile=str(path))
        report = json.loads(path.read_text())
    printed, reached = lines(report)
    print("\n".join(printed))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
