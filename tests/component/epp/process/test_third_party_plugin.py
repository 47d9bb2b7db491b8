"""The distribution in docs/third-party-plugins.md is built, installed and used; the picker is unchanged."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

PAGE = Path(__file__).parents[4] / "docs" / "third-party-plugins.md"
DECIDE = """
import sys
import numpy as np
from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.request import InferenceRequest
from endpoint_picker.routing import build_router
router = build_router(config_text=sys.stdin.read())
router.replace_endpoints(Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000) for n in range(4))
rows = router.table.ready_rows
router.table.inflight_requests[rows] = [0, 2, 4, 1]
print(router.decide(InferenceRequest(request_id="r"), None, print).endpoint)
"""


def blocks() -> dict[str, str]:
    return dict(re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL))


def run(*command: str, path: Path, text: str = "") -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), *sys.path[1:]])}
    done = subprocess.run(
        [sys.executable, *command], input=text, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    (source / "pyproject.toml").write_text(blocks()["toml"])
    (source / "epp_spare_scorer.py").write_text(blocks()["python"])
    pip = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index", "--no-deps")
    run(*pip, "--no-build-isolation", "--target", str(target), str(source), path=target)
    return target


def test_the_page_shows_a_plugin_in_thirty_lines() -> None:
    assert len(blocks()["python"].splitlines()) <= 30


def test_a_configuration_may_name_it(installed: Path) -> None:
    check = ("-m", "endpoint_picker.main", "check-config", "-")
    shown: dict[str, Any] = yaml.safe_load(run(*check, path=installed, text=blocks()["yaml"]))
    assert shown["plugins"][0] == {"type": "spare-scorer", "parameters": {"limit": 4}}
    assert shown["schedulingProfiles"][0]["plugins"][0] == {"pluginRef": "spare-scorer", "weight": 1.0}


def test_it_decides(installed: Path) -> None:
    assert run("-c", DECIDE, path=installed, text=blocks()["yaml"]).strip() == "10.0.0.1:8000"
