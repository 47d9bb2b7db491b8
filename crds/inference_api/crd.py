"""The CustomResourceDefinitions of Headroom, generated from the API types: `python -m inference_api.crd`.

This module adds to each kind what its type cannot express: names, printer columns, annotations, folder.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from inference_api import names
from inference_api.endpoint_picker import EndpointPicker
from inference_api.inference_model_rewrite import InferenceModelRewrite
from inference_api.inference_objective import InferenceObjective
from inference_api.inference_pool import InferencePool
from inference_api.meta import ApiType
from inference_api.schema import structural_schema

#: The schemas come from the llm-d router's main branch; a release has its version in this annotation.
LLM_D_BUNDLE: Final = {"llm-d.ai/bundle-version": "main-dev"}

OURS: Final = "base/crds"
"""Folder of our own kind, part of every installation."""
UPSTREAM: Final = "gie-crds"
"""Folder of upstream's kinds, for clusters that have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of `kubectl get`; `wide` ones show with `-o wide` only."""

    name: str
    path: str
    description: str = ""
    type: str = "string"
    wide: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the column as an additionalPrinterColumns item."""
        optional = {"description": self.description} if self.description else {}
        priority = {"priority": 1} if self.wide else {}
        return {**optional, "jsonPath": self.path, "name": self.name, **priority, "type": self.type}


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomResource:
    """One kind, as a CustomResourceDefinition describes it."""

    model: type[ApiType]
    group: str
    version: str
    kind: str
    plural: str
    folder: str
    short_names: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()

    @property
    def file_name(self) -> str:
        """Return the path of the YAML file below the manifests folder."""
        return f"{self.folder}/{self.group}_{self.plural}.yaml"

    def definition(self) -> dict[str, Any]:
        """Return the CustomResourceDefinition."""
        short_names = {"shortNames": list(self.short_names)} if self.short_names else {}
        annotations = {"annotations": dict(self.annotations)} if self.annotations else {}
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{self.plural}.{self.group}", **annotations},
            "spec": {
                "group": self.group,
                "names": {
                    "kind": self.kind,
                    "listKind": f"{self.kind}List",
                    "plural": self.plural,
                    **short_names,
                    "singular": self.kind.lower(),
                },
                "scope": "Namespaced",
                "versions": [
                    {
                        "name": self.version,
                        "served": True,
                        "storage": True,
                        "additionalPrinterColumns": [column.to_json() for column in self.columns],
                        "subresources": {"status": {}},
                        "schema": {"openAPIV3Schema": structural_schema(self.model)},
                    }
                ],
            },
        }


def _condition(kind: str, part: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{part}'


AGE: Final = Column(name="Age", path=".metadata.creationTimestamp", type="date")
POOL_OF: Final = Column(name="Inference Pool", path=".spec.poolRef.name")
ACCEPTED: Final = Column(
    name="Accepted", path=_condition("Accepted", "status"), description="Whether a picker uses it."
)
# A dot inside an annotation's name is escaped, or it would be read as a step of the path.
PICKER_WORD: Final = ".metadata.annotations." + names.PICKER_ANNOTATION.replace(".", r"\.")

ENDPOINT_PICKER: Final = CustomResource(
    model=EndpointPicker,
    group=names.PICKER_GROUP,
    version=names.PICKER_VERSION,
    kind=names.PICKER_KIND,
    plural=names.PICKER_PLURAL,
    folder=OURS,
    short_names=("epick",),
    columns=(
        Column(name="Ready", path=_condition("Ready", "status"), description="Whether all conditions hold."),
        Column(name="Reason", path=_condition("Ready", "reason"), description="Reason of condition Ready."),
        Column(
            name="Pickers",
            path=".status.readyReplicas",
            type="integer",
            description="Picker pods that are ready.",
        ),
        Column(
            name="Endpoints",
            path=".status.endpoints.ready",
            type="integer",
            description="Endpoints of the pool that are ready.",
        ),
        Column(
            name="Of",
            path=".status.endpoints.total",
            type="integer",
            description="All endpoints of the pool.",
        ),
        Column(name="Paused", path=".spec.paused", type="boolean", wide=True),
        Column(name="Proxy", path=".status.proxyAddress", wide=True, description="Address of the proxy."),
        Column(name="Message", path=_condition("Ready", "message"), wide=True, description="What to do."),
        AGE,
    ),
)
INFERENCE_POOL: Final = CustomResource(
    model=InferencePool,
    group=names.POOL_GROUP,
    version=names.POOL_VERSION,
    kind=names.POOL_KIND,
    plural=names.POOL_PLURAL,
    folder=UPSTREAM,
    short_names=("infpool",),
    annotations={
        # The API server serves a group below k8s.io only with the approval of its schema.
        "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api-inference-extension/pull/1173",
        # The release of the extension whose schema this is; its conformance suite and installers read it.
        f"{names.POOL_GROUP}/bundle-version": "v1.6.0",
    },
    columns=(
        Column(
            name="Picker",
            path=PICKER_WORD,
            description="Headroom's verdict on the pool's picker, in one word.",
        ),
        Column(
            name="Gateway",
            path=".status.parents[*].parentRef.name",
            description="First parent that routes to the pool.",
        ),
        Column(
            name="Picker Ref",
            path=".spec.endpointPickerRef.name",
            wide=True,
            description="Picker that gateways call.",
        ),
        Column(
            name="Failure Mode",
            path=".spec.endpointPickerRef.failureMode",
            wide=True,
            description="What gateways do while the picker does not answer.",
        ),
        AGE,
    ),
)
INFERENCE_OBJECTIVE: Final = CustomResource(
    model=InferenceObjective,
    group=names.OBJECTIVE_GROUPS[0],
    version=names.OBJECTIVE_VERSION,
    kind=names.OBJECTIVE_KIND,
    plural=names.OBJECTIVE_PLURAL,
    folder=UPSTREAM,
    annotations=LLM_D_BUNDLE,
    columns=(POOL_OF, Column(name="Priority", path=".spec.priority"), ACCEPTED, AGE),
)
INFERENCE_MODEL_REWRITE: Final = CustomResource(
    model=InferenceModelRewrite,
    group=names.OBJECTIVE_GROUPS[0],
    version=names.OBJECTIVE_VERSION,
    kind=names.REWRITE_KIND,
    plural=names.REWRITE_PLURAL,
    folder=UPSTREAM,
    annotations=LLM_D_BUNDLE,
    columns=(POOL_OF, AGE),
)
RESOURCES: Final = (ENDPOINT_PICKER, INFERENCE_POOL, INFERENCE_OBJECTIVE, INFERENCE_MODEL_REWRITE)


def render(resource: CustomResource) -> str:
    """Return the YAML file of a kind; equal types give equal bytes."""
    heading = "# Generated from crds/inference_api by `make crds`; change the types, not this file.\n"
    return heading + yaml.safe_dump(resource.definition(), sort_keys=False, width=110)


def stale_files(manifests: Path) -> list[Path]:
    """Return the files below `manifests` that are missing or differ from what the types say."""
    wanted = ((manifests / resource.file_name, render(resource)) for resource in RESOURCES)
    return [path for path, text in wanted if not path.is_file() or path.read_text("utf-8") != text]


def write_files(manifests: Path) -> None:
    """Write all files below `manifests`, and the folders they need."""
    for resource in RESOURCES:
        path = manifests / resource.file_name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(resource), "utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the CRD files, or with --check say which are stale; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m inference_api.crd", description="Write the CRD YAML files."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is stale")
    parser.add_argument(
        "--output", type=Path, default=Path("manifests"), metavar="DIR", help="manifests folder (%(default)s)"
    )
    options = parser.parse_args(arguments)
    if not options.check:
        try:
            write_files(options.output)
        except OSError as error:
            sys.stderr.write(f"cannot write below {options.output}: {error}\n")
            return 1
        return 0
    stale = stale_files(options.output)
    for path in stale:
        sys.stderr.write(f"{path} differs from the types in crds/inference_api: run `make crds`\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
