"""The workload file: its model, its presets, and reading it with every fault named by line and path. Pure."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from endpoint_picker import yaml_text
from endpoint_picker.config_errors import ConfigError, joined
from pool_simulation.workloads.arrivals import Arrivals
from pool_simulation.workloads.distributions import Distribution, NotNegative, Part, Positive
from pool_simulation.workloads.presets import PRESETS

Name = Annotated[
    str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
]
Share = Annotated[float, Field(ge=0, le=1)]
#: Longest run, seconds.
MAX_DURATION_S: Final = 30 * 86_400
Seconds = Annotated[float, Field(gt=0, le=MAX_DURATION_S)]

#: Streams and traces of one workload.
MAX_STREAMS: Final = 64


class Mix(Part):
    """Names with their shares of the requests: given as `names`, or `count` numbered ones by popularity."""

    names: Annotated[dict[Name, Positive], Field(min_length=1, max_length=10_000)] | None = None
    """Each name with its weight."""
    count: Annotated[int, Field(ge=1, le=10_000)] | None = None
    zipf: Annotated[float, Field(ge=0, le=5)] = 0.0
    """Exponent of the popularity of numbered names; 0: all alike."""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.names is None) == (self.count is None):
            raise ValueError("give either names, each with its weight, or count")
        return self


class Adapters(Mix):
    """LoRA adapters with their shares."""

    base_share: Share = 0.0
    """Share of the requests that go to the base model."""


class SystemPrompts(Part):
    """Prompts that open many requests alike, some more popular than others."""

    count: Annotated[int, Field(ge=1, le=100_000)] = 1
    zipf: Annotated[float, Field(ge=0, le=5)] = 0.0
    tokens: Distribution


class Documents(Part):
    """Documents of which each session's first prompt holds some, in the order of their retrieval."""

    count: Annotated[int, Field(ge=1, le=1_000_000)]
    zipf: Annotated[float, Field(ge=0, le=5)] = 0.0
    each: Annotated[int, Field(ge=1, le=100)] = 1
    """Documents in a prompt."""
    tokens: Distribution


class Turns(Part):
    """Sessions of several turns; each prompt repeats all before it, answers included."""

    count: Distribution
    """Turns of a session; at most 1,024."""
    think_s: Distribution
    """From the end of an answer to the next turn, seconds: a user's thinking, or an agent's tool."""
    message_tokens: Distribution | None = None
    """What each turn after the first adds; default: as `prompt_tokens`."""


class Slo(Part):
    """What clients accept."""

    ttft_ms: Positive | None = None
    """Longest time to first token."""
    tpot_ms: Positive | None = None
    """Longest mean time per further token."""


class _Source(Part):
    name: Name
    model: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Default: the workload's `model`."""
    tenants: Mix | None = None
    """Fairness ids; default: none."""
    adapters: Adapters | None = None
    objective: Name | None = None
    """Name of the InferenceObjective that the requests name."""
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    """The priority that the objective gives."""
    slo: Slo = Slo()


class Stream(_Source):
    """Generated requests of one kind."""

    preset: str | None = None
    """Fills in the keys that the stream leaves out."""
    arrivals: Arrivals
    """Of requests, or of sessions where there are `turns`."""
    prompt_tokens: Distribution
    """Of the user's own text; system prompt and documents come on top."""
    output_tokens: Distribution
    system_prompts: SystemPrompts | None = None
    documents: Documents | None = None
    turns: Turns | None = None
    max_prompt_tokens: Annotated[int, Field(ge=1, le=10_000_000)] = 10_000_000
    """A session ends before a prompt would be longer. A first prompt's own text is cut to fit."""


class Trace(_Source):
    """Requests of a recorded trace."""

    file: Annotated[str, Field(min_length=1)]
    """Relative paths start at the workload file's folder."""
    format: Literal["auto", "azure", "mooncake"] = "auto"
    speed: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """2 replays it in half the time."""
    block_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 512
    """Tokens behind one hash id of a Mooncake trace."""


class WorkloadSpec(Part):
    """A workload: streams and traces side by side."""

    duration_s: Seconds | None = None
    """No request arrives later. Only a workload of traces alone may leave it out: they run to their end."""
    warmup_s: NotNegative = 0.0
    """Requests that arrive earlier load the pool but do not count in figures."""
    model: Annotated[str, Field(min_length=1, max_length=253)] = "model"
    streams: list[Stream] = Field(default=[], max_length=MAX_STREAMS)
    traces: list[Trace] = Field(default=[], max_length=MAX_STREAMS)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not self.streams and not self.traces:
            raise ValueError("give at least one of streams and traces")
        if self.streams and self.duration_s is None:
            raise ValueError("duration_s is missing: generated streams have no end of their own")
        if self.duration_s is not None and self.warmup_s >= self.duration_s:
            msg = f"warmup_s ({self.warmup_s:g}) leaves nothing of duration_s ({self.duration_s:g})"
            raise ValueError(msg)
        names = [source.name for source in (*self.streams, *self.traces)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            msg = f"several streams are named {twice[0]}"
            raise ValueError(msg)
        return self


def load(text: str) -> WorkloadSpec:
    """Return the workload that a YAML text describes. Raises ConfigError with every fault."""
    raw = yaml_text.load(text)
    if not isinstance(raw, dict):
        raise ConfigError("", "a workload is a mapping with duration_s and streams")
    filled = _with_presets(raw)
    try:
        return WorkloadSpec.model_validate(filled)
    except ValidationError as error:
        raise _named(error, filled) from error


def dump(spec: WorkloadSpec) -> str:
    """Return the workload as YAML in its complete form, presets and defaults filled in."""
    return yaml.safe_dump(spec.model_dump(exclude_none=True), sort_keys=False)


def _with_presets(raw: dict[str, Any]) -> dict[str, Any]:
    streams = raw.get("streams")
    if not isinstance(streams, list):
        return raw
    return {**raw, "streams": [_with_preset(stream, index) for index, stream in enumerate(streams)]}


def _with_preset(stream: object, index: int) -> object:
    if not isinstance(stream, dict) or "preset" not in stream:
        return stream
    name = stream["preset"]
    preset = PRESETS.get(name) if isinstance(name, str) else None
    if preset is None:
        known = ", ".join(PRESETS)
        raise ConfigError(f"streams[{index}].preset", f"{name!r} is no preset; there are {known}")
    return {**preset, **stream}


def _named(error: ValidationError, raw: Mapping[str, Any]) -> ConfigError:
    faults = error.errors(include_url=False, include_input=False, include_context=True)
    return joined([ConfigError(_path(raw, fault["loc"]), _sentence(fault)) for fault in faults])


def _path(raw: object, loc: tuple[int | str, ...]) -> str:
    """Return a fault's place as the file spells it, without the names of union members in pydantic's."""
    path, node = "", raw
    for place, part in enumerate(loc):
        if isinstance(part, int):
            path += f"[{part}]"
            node = node[part] if isinstance(node, list) and part < len(node) else None
        elif isinstance(node, dict) and part in node:
            path, node = f"{path}.{part}" if path else part, node[part]
        elif place == len(loc) - 1 and part not in {"[key]", _tag(node)}:
            path = f"{path}.{part}" if path else part
    return path


def _tag(node: object) -> object:
    if isinstance(node, dict):
        return node.get("type")
    return "fixed" if isinstance(node, int | float) else None


def _sentence(fault: Any) -> str:
    kind, message, context = fault["type"], fault["msg"], fault.get("ctx", {})
    if kind == "extra_forbidden":
        return "unknown key; remove it"
    if kind == "missing":
        return "is missing"
    if kind in {"union_tag_not_found", "model_attributes_type"}:
        form = (
            "a mapping with a type"
            if fault["loc"][-1] == "arrivals"
            else "a number, or a mapping with a type"
        )
        return f"must be {form}"
    if kind == "union_tag_invalid":
        return f"type {context['tag']} is unknown; there are {context['expected_tags'].replace(chr(39), '')}"
    return str(message).removeprefix("Value error, ")
