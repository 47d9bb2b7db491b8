"""docs/conditions.md is what a 3 a.m. reader opens: it must know every reason, and none that is not."""

import re
from pathlib import Path

from inference_operator.core import reasons

PAGE = (Path(__file__).parents[4] / "docs" / "conditions.md").read_text()
WORDS = {each.word for each in vars(reasons).values() if isinstance(each, reasons.Reason)}


def test_every_reason_is_explained() -> None:
    assert {word for word in WORDS if not re.search(rf"\b{word}\b", PAGE)} == set()


def test_no_reason_is_made_up() -> None:
    rows = re.findall(r"^\| ([A-Z][A-Za-z, ]+) \| (?:True|False|Unknown) ", PAGE, re.MULTILINE)
    explained = {word for row in rows for word in row.split(", ")}
    assert explained - WORDS == set()
    assert len(explained) > 20
