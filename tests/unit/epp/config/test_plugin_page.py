"""docs/plugins.md is what the plugin classes say."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_the_page_is_generated_from_the_classes() -> None:
    generator = runpy.run_path(str(ROOT / "docs" / "plugin_page.py"))
    assert (ROOT / "docs" / "plugins.md").read_text() == generator["text"](), "make plugin-page writes it"


def test_every_plugin_has_a_section_and_every_parameter_a_meaning() -> None:
    page = (ROOT / "docs" / "plugins.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `") and line.count("|") == 4]
    assert len(rows) > 30
    assert [row for row in rows if not row.split("|")[3].strip()] == []
