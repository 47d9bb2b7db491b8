"""`headroom-epp check-config`: the effective configuration, or every fault with its line."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from endpoint_picker import yaml_text
from endpoint_picker.check_config import run
from endpoint_picker.config.build import build
from endpoint_picker.config.parsers import READING
from endpoint_picker.config.registry import Registry
from inference_api.default_picker_config import DEFAULT_PICKER_CONFIG

FAULTY = """\
plugins:
- type: queue-scorer
  parameters:
    speed: 1
- type: load-aware-scorer
  parameters: {threshold: 0}
- type: nope
schedulingProfiles:
- name: a
  plugins:
  - pluginRef: queue-scorer
  - pluginRef: missing
"""


def checked(path: Path, text: str) -> int:
    path.write_text(text)
    return run([str(path)])


def test_every_fault_has_its_line_and_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    assert checked(file, FAULTY) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(": ")[:2] for line in err.splitlines()] == [
        [f"{file}:4", "plugins[0].parameters.speed"],
        [f"{file}:6", "plugins[1].parameters.threshold"],
        [f"{file}:7", "plugins[2].type"],
        [f"{file}:12", "schedulingProfiles[0].plugins[1].pluginRef"],
    ]


def test_a_key_that_is_missing_is_reported_at_its_parent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    assert checked(file, "kind: EndpointPickerConfig\nplugins:\n- name: a\n") == 1
    assert capsys.readouterr().err.startswith(f"{file}:3: plugins[0].type: ")


def test_what_is_no_yaml_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(tmp_path / "config.yaml", "plugins: [\n") == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        DEFAULT_PICKER_CONFIG,
        "dataLayer: {injectDefaults: false}",
        """
plugins:
- {type: by-label-selector, name: max-score-picker, parameters: {matchLabels: {a: b}}}
- {type: approx-prefix-cache-producer, parameters: {blockSize: 128}}
- {type: prefix-cache-scorer, name: prefix}
- {type: context-length-aware}
- {type: prefix-cache-affinity-filter, parameters: {maxTTFTPenaltyMs: 5000}}
- {type: header-profile-handler, parameters: {defaultProfile: a}}
- {type: utilization-detector, parameters: {metricsStalenessThreshold: 300ms}}
- {type: core-metrics-extractor, parameters: {defaultEngine: sglang}}
schedulingProfiles:
- name: a
  plugins: [{pluginRef: max-score-picker}, {pluginRef: prefix, weight: 2}, {pluginRef: context-length-aware}]
- name: b
  plugins: [{pluginRef: prefix-cache-affinity-filter}]
""",
    ],
)
def test_the_effective_configuration_is_one_that_comes_to_itself(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    assert checked(file, text) == 0
    first = capsys.readouterr().out
    assert checked(file, first) == 0
    again = capsys.readouterr()
    assert again.out == first
    assert again.err == ""
    assert build(first, Registry.installed()).scrape == build(text, Registry.installed()).scrape


def test_defaults_and_added_plugins_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(tmp_path / "config.yaml", "plugins: [{type: prefix-cache-scorer}]") == 0
    shown: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    assert {each["type"] for each in shown["plugins"]} == {
        "prefix-cache-scorer",
        "approx-prefix-cache-producer",
        "single-profile-handler",
        "max-score-picker",
        "utilization-detector",
        "metrics-data-source",
        "core-metrics-extractor",
        *(kind.type_name for kind in READING),
    }
    assert shown["plugins"][0]["parameters"] == {"matchLengthWeight": 0.0, "matchLengthScaleTokens": 8192}
    (profile,) = shown["schedulingProfiles"]
    assert profile["plugins"] == [
        {"pluginRef": "prefix-cache-scorer", "weight": 1.0},
        {"pluginRef": "max-score-picker"},
    ]


def test_warnings_do_not_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    assert checked(file, "apiVersion: inference.networking.x-k8s.io/v1alpha1") == 0
    assert "warning: apiVersion" in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([str(tmp_path / "none.yaml")]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("plugins: []\nplugins: [{type: queue-scorer}]\n", '"plugins" a second time at line 2'),
        (
            "plugins:\n- type: queue-scorer\n- type: max-score-picker\n  name: a\n  name: b\n",
            '"name" a second time at line 5',
        ),
        ("plugins: " + "[" * 50_000 + "]" * 50_000, "nested more than 64 deep at line 1"),
        ("plugins: " + "{a: " * 900 + "1" + "}" * 900, "nested more than 64 deep at line 1"),
    ],
)
def test_a_second_key_and_deep_nesting_are_faults(
    text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(tmp_path / "config.yaml", text) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


def test_anchors_and_merge_keys_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = "parameters: &few {maxNumOfEndpoints: 1}"
    text = f"plugins:\n- type: max-score-picker\n  {shared}\n"
    text += "- {type: random-picker, parameters: {<<: *few}}\n"
    text += "schedulingProfiles:\n- {name: a, plugins: [{pluginRef: max-score-picker}]}\n"
    text += "- {name: b, plugins: [{pluginRef: random-picker}]}\n"
    checked(tmp_path / "config.yaml", text)
    assert "parameters" not in capsys.readouterr().err


def test_a_text_of_many_faults_is_read_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    composed: list[str] = []
    compose = yaml_text._node_of

    def counted(text: str) -> yaml.Node | None:
        composed.append(text)
        return compose(text)

    monkeypatch.setattr(yaml_text, "_node_of", counted)
    many = "plugins:\n" + "".join(f"- {{type: nope, name: q{n}}}\n" for n in range(50))
    assert checked(tmp_path / "config.yaml", many) == 1
    assert len(composed) == 2
    assert capsys.readouterr().err.count(": plugins[") == 50
