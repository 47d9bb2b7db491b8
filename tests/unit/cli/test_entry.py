"""The commands where Headroom, or an extra of it, is not installed: a sentence or an answer, no trace."""

import importlib.metadata
import sys
from collections.abc import Callable

import pytest

import endpoint_picker.entry
import headroom_cli.entry
import headroom_cli.main
import inference_operator.entry
import model_server_sim.entry

COMMANDS = {
    "headroom": headroom_cli.entry.main,
    "kubectl-headroom": headroom_cli.entry.kubectl_plugin,
    "headroom-operator": inference_operator.entry.main,
    "headroom-epp": endpoint_picker.entry.main,
    "headroom-model-server-sim": model_server_sim.entry.main,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_source_tree_that_is_not_installed_has_an_unknown_version(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run: Callable[[], object] = COMMANDS[command]
    monkeypatch.setattr(sys, "argv", [command, "--version"])
    monkeypatch.setattr(importlib.metadata.Distribution, "discover", lambda **_: iter(()))
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 0
    assert capsys.readouterr().out == "unknown\n"


@pytest.mark.parametrize(
    ("command", "module", "extra"),
    [
        ("headroom", "headroom_cli.main", "local"),
        ("kubectl-headroom", "headroom_cli.kubectl_plugin", "local"),
        ("headroom-operator", "inference_operator.main", "operator"),
        ("headroom-epp", "endpoint_picker.main", "epp"),
        ("headroom-model-server-sim", "model_server_sim.main", "simulator"),
    ],
)
def test_a_command_without_its_dependencies_names_the_extra(
    command: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Callable[[], object] = COMMANDS[command]
    monkeypatch.setitem(sys.modules, module, None)  # the import fails as one of a missing package does
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == f"{command} needs {module}: pip install 'headroom-operator[{extra}]'"


def test_the_scripts_run_these_entries() -> None:
    scripts = importlib.metadata.entry_points(group="console_scripts")
    assert {each.name: each.load() for each in scripts if each.name in COMMANDS} == COMMANDS


def test_without_arguments_the_groups_and_the_first_command_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert headroom_cli.main.main([]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "a pool's endpoints and queue" in shown
    assert "Begin with `headroom demo up`" in shown
