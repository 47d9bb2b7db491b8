"""The pool file of `headroom simulate`: Kubernetes objects that describe one pool and its picker.

It holds an InferencePool; optionally an EndpointPicker (for `spec.config`) or an EndpointPickerConfig,
InferenceObjectives (for priorities) and the Deployments of the model servers (for `spec.replicas` and the
labels of their pods, such as the roles of a disaggregated pool). Objects of other kinds are ignored, so that
a file for `kubectl apply` serves as it is. Two annotations of the pool say what only a simulation needs:
`simulate.headroom.dev/engine`, the name of an engine preset, and `simulate.headroom.dev/replicas`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml
from pydantic import ValidationError

from endpoint_picker import yaml_text
from endpoint_picker.config.build import build
from endpoint_picker.config.registry import Registry
from endpoint_picker.config_errors import ConfigError, from_validation
from inference_api.endpoint_picker import EndpointPicker
from inference_api.inference_objective import InferenceObjective
from inference_api.inference_pool import InferencePool
from inference_api.names import OBJECTIVE_KIND, PICKER_KIND, POOL_KIND
from pool_simulation.study.groups import Group

ENGINE_ANNOTATION: Final = "simulate.headroom.dev/engine"
REPLICAS_ANNOTATION: Final = "simulate.headroom.dev/replicas"
#: Replicas that a simulated pool may have.
MAX_REPLICAS: Final = 1_000
CONFIG_KIND: Final = "EndpointPickerConfig"


@dataclass(frozen=True, slots=True)
class PoolFile:
    """One pool, as a simulation needs it."""

    name: str
    config: str
    """Text of the EndpointPickerConfig; "" for Headroom's default."""
    priorities: Mapping[str, int]
    """Priority of each InferenceObjective of the pool."""
    ports: int
    """Target ports: engines in one replica."""
    replicas: int | None
    engine: str | None
    groups: tuple[Group, ...] = ()
    """The Deployments of the model servers, with what sets their pods apart."""


class PoolFileError(Exception):
    """A pool file cannot be used; `faults` are (line, message), the line 0 where there is none."""

    def __init__(self, faults: list[tuple[int, str]]) -> None:
        super().__init__("; ".join(message for _, message in faults))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class _Document:
    line: int
    """Lines before it in the file."""
    text: str
    value: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.value.get("kind", ""))

    @property
    def name(self) -> str:
        metadata = self.value.get("metadata")
        return str(metadata.get("name", "")) if isinstance(metadata, dict) else ""

    def fault(self, error: ConfigError, prefix: str = "") -> PoolFileError:
        """Return the faults with their lines in the file."""
        faults = []
        paths = [".".join(part for part in (prefix, each.path) if part) for each in error.faults]
        lines = yaml_text.lines_of(self.text, paths)
        for each, path, line in zip(error.faults, paths, lines, strict=True):
            says = f"{self.kind} {self.name}: {path}: {each.message}" if path else each.message
            faults.append((self.line + line if line else self.line + 1, says))
        return PoolFileError(faults)


def parse(text: str, registry: Registry) -> PoolFile:
    """Return the pool in the text of a pool file. Raises PoolFileError."""
    documents = list(_documents(text))
    pools = [each for each in documents if each.kind == POOL_KIND]
    if len(pools) != 1:
        says = f"holds {len(pools)} objects of the kind {POOL_KIND}, needs one"
        raise PoolFileError([(pools[1].line + 1 if pools else 0, says)])
    document = pools[0]
    pool = _model(InferencePool, document)
    annotations = pool.metadata.annotations
    priorities = {}
    for each in documents:
        if each.kind == OBJECTIVE_KIND:
            objective = _model(InferenceObjective, each)
            if objective.spec.pool_ref.name == pool.metadata.name:
                priorities[objective.metadata.name] = objective.spec.priority or 0
    groups = _deployed(documents, pool)
    return PoolFile(
        name=pool.metadata.name or "pool",
        config=_config(documents, pool.metadata.name, registry),
        priorities=priorities,
        ports=len(pool.spec.target_ports),
        replicas=_replicas(document, annotations)
        or min(sum(each.replicas for each in groups), MAX_REPLICAS)
        or None,
        engine=annotations.get(ENGINE_ANNOTATION),
        groups=groups,
    )


def _documents(text: str) -> Iterator[_Document]:
    """Yield the mappings of a YAML stream. A line "---" cannot be inside a value: values are indented."""
    if len(text) > yaml_text.MAX_BYTES:
        raise PoolFileError([(0, f"longer than {yaml_text.MAX_BYTES} bytes")])
    begin, lines = 0, text.splitlines(keepends=True)
    ends = [number for number, line in enumerate(lines) if line.rstrip() == "---"]
    for end in (*ends, len(lines)):
        part = "".join(lines[begin:end])
        try:
            value = yaml_text.load(part)
        except ConfigError as error:
            raise PoolFileError([(begin + 1, f"the document from here on is {error.message}")]) from error
        if isinstance(value, dict):
            yield _Document(begin, part, value)
        elif value is not None:
            raise PoolFileError([(begin + 1, "is no Kubernetes object")])
        begin = end + 1


def _model(model: Any, document: _Document) -> Any:
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        raise document.fault(from_validation(error)) from error


def _config(documents: list[_Document], pool: str, registry: Registry) -> str:
    """Return the text of the picker's configuration, checked as the picker would."""
    found: list[tuple[_Document, str, Any]] = [
        (each, "", each.value) for each in documents if each.kind == CONFIG_KIND
    ]
    for each in documents:
        if each.kind == PICKER_KIND and each.name == pool:
            config = _model(EndpointPicker, each).spec.config
            if config:
                found.append((each, "spec.config", config))
    if not found:
        return ""
    if len(found) > 1:
        says = f"a second configuration of the picker; keep the {CONFIG_KIND} or spec.config"
        raise PoolFileError([(found[1][0].line + 1, says)])
    document, prefix, config = found[0]
    text = yaml.safe_dump(config, sort_keys=False)
    try:
        build(text, registry)
    except ConfigError as error:
        raise document.fault(error, prefix) from error
    return text


def _replicas(document: _Document, annotations: Mapping[str, str]) -> int | None:
    text = annotations.get(REPLICAS_ANNOTATION)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MAX_REPLICAS):
        path = f"metadata.annotations.{REPLICAS_ANNOTATION}"
        fault = ConfigError("metadata.annotations", f"{path} must be a number from 1 to {MAX_REPLICAS}")
        raise document.fault(fault)
    return int(text)


def _deployed(documents: list[_Document], pool: InferencePool) -> tuple[Group, ...]:
    """Return the workloads whose pods the pool selects, those without replicas left out."""
    wanted = pool.spec.selector.match_labels
    groups: list[Group] = []
    for each in documents:
        spec = each.value.get("spec")
        if each.kind not in {"Deployment", "StatefulSet"} or not isinstance(spec, dict):
            continue
        labels = _inside(spec, "template", "metadata", "labels")
        replicas = spec.get("replicas", 1)
        if wanted and wanted.items() <= labels.items() and type(replicas) is int and replicas > 0:
            pairs = tuple(sorted((str(name), str(value)) for name, value in labels.items()))
            groups.append(Group(pairs, min(replicas, MAX_REPLICAS)))
    return tuple(groups)


def _inside(value: object, *keys: str) -> dict[str, Any]:
    """Return the mapping at the end of a path of keys; an empty one where a part is no mapping or missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}
