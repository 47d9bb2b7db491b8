"""The CRD files: generated from the types, equal to upstream's where the kind is upstream's."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from inference_api import crd

ROOT = Path(__file__).parents[3]
UPSTREAM = ROOT.parent / "shared" / "upstream-crds"
OF_UPSTREAM = [resource for resource in crd.RESOURCES if resource.folder == crd.UPSTREAM]


def test_the_committed_files_are_what_the_types_say() -> None:
    assert crd.stale_files(ROOT / "manifests") == []


def test_check_names_each_stale_file_and_the_cure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert crd.main(["--output", str(tmp_path)]) == 0
    assert crd.main(["--check", "--output", str(tmp_path)]) == 0
    changed = tmp_path / crd.INFERENCE_POOL.file_name
    changed.write_text(changed.read_text() + "# edited\n")
    (tmp_path / crd.ENDPOINT_PICKER.file_name).unlink()

    assert crd.main(["--check", "--output", str(tmp_path)]) == 1

    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all("run `make crds`" in line for line in said)


def test_an_unwritable_folder_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")

    assert crd.main(["--output", str(tmp_path / "file")]) == 1

    assert "cannot write below" in capsys.readouterr().err


@pytest.mark.parametrize("resource", crd.RESOURCES, ids=lambda resource: resource.kind)
def test_a_file_can_be_read_without_following_anchors(resource: crd.CustomResource) -> None:
    tokens = {type(token) for token in yaml.scan(crd.render(resource))}

    assert not tokens & {yaml.AliasToken, yaml.AnchorToken}


def test_our_own_kind_freezes_no_default_into_objects() -> None:
    assert "default:" not in crd.render(crd.ENDPOINT_PICKER)


@pytest.mark.parametrize("resource", OF_UPSTREAM, ids=lambda resource: resource.kind)
def test_a_kind_of_upstream_differs_in_words_and_columns_only(resource: crd.CustomResource) -> None:
    if not UPSTREAM.is_dir():
        pytest.skip("upstream's CRDs are not at hand")
    theirs = yaml.safe_load((UPSTREAM / Path(resource.file_name).name).read_text())
    ours = resource.definition()
    their_columns = theirs["spec"]["versions"][0].pop("additionalPrinterColumns", [])
    our_columns = ours["spec"]["versions"][0].pop("additionalPrinterColumns")

    assert comparable(ours["spec"]) == comparable(theirs["spec"])
    assert set(ours["metadata"]["annotations"]) == set(theirs["metadata"]["annotations"])
    assert ours["metadata"]["name"] == theirs["metadata"]["name"]
    assert [column for column in our_columns if column in their_columns] == their_columns


def comparable(node: Any) -> Any:
    """A schema without its prose; the order of required names says nothing."""
    if isinstance(node, dict):
        return {
            key: sorted(value) if key == "required" and isinstance(value, list) else comparable(value)
            for key, value in node.items()
            if not (key == "description" and isinstance(value, str))
        }
    return [comparable(item) for item in node] if isinstance(node, list) else node
