"""Writes docs/plugins.md from the plugin classes, and the ecosystem's types that are not offered.

    python docs/plugin_page.py            write
    python docs/plugin_page.py --check    exit 1 if the page differs

A parameter's meaning is the docstring of its field, so that the page says what the code says.
"""

import ast
import inspect
import json
import sys
import textwrap
from enum import Enum
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from endpoint_picker.config.not_offered import NOT_OFFERED
from endpoint_picker.config.parsers import Parser
from endpoint_picker.config.registry import Registry
from endpoint_picker.flowcontrol.policies import FairnessPolicy, OrderingPolicy, UsageLimitPolicy
from endpoint_picker.scheduling.decider import Decider
from endpoint_picker.scheduling.plugin import (
    Admitter,
    Filter,
    Follower,
    LateAdmitter,
    Picker,
    Plugin,
    Producer,
    RequestReader,
    SaturationDetector,
    Scorer,
    Screener,
)
from endpoint_picker.scheduling.profile_handler import ProfileHandler

PAGE: Final = Path(__file__).with_name("plugins.md")

_KINDS: Final[dict[str, type[Plugin]]] = {
    "Profile handlers": ProfileHandler,
    "Deciders": Decider,
    "Saturation detectors": SaturationDetector,
    "Request readers": RequestReader,
    "Screeners": Screener,
    "Admitters": Admitter,
    "Admitters by prediction": LateAdmitter,
    "Filters": Filter,
    "Scorers": Scorer,
    "Pickers": Picker,
    "Producers": Producer,
    "Reporters": Follower,
    "Orders within a flow": OrderingPolicy,
    "Fairness between flows": FairnessPolicy,
    "Usage limits": UsageLimitPolicy,
    "Parsers": Parser,
    "Settings of built-in parts": Plugin,
}

_HEAD: Final = """\
# Plugins

Generated from the plugin classes by `make plugin-page`; `make check` fails while it differs.

`headroom-epp check-config FILE` prints what a configuration comes to, with every default and every plugin
that is added, or each fault with its line. Unknown parameters are refused. A plugin from another distribution
works as these do: [A plugin of your own](third-party-plugins.md).
"""

#: How an offered type differs from the llm-d router's type of that name.
_DIFFERENCES: Final[dict[str, str]] = {
    "active-request-scorer": "`requestTimeout` has no effect there and is refused here",
    "always-disagg-multimodal-decider": "media after the first MiB of a prompt are not seen",
    "agent-identity": "session-affinity can read it; as a fairness id it counts with trustTenantHeaders only",
    "approx-prefix-cache-producer": "the servers are bounded together as well; the last, shorter block is "
    "not matched; a server that lacks an early block gets nothing for later ones",
    "context-length-aware": "the length is estimated from the prompt's bytes; no server left is 503, not 429",
    "concurrency-detector": "the name of the producer is no parameter: the ledger counts; no server left is "
    "503, not 429; a limit that the mode does not read is refused",
    "core-metrics-extractor": "all engines of a pod are combined; of several samples "
    "of a custom metric the mean counts; `cacheHitRate` is only here",
    "data-parallel-profile-handler": "the destination has no fallbacks, which the header would mislead",
    "decode-filter": "keeps `encode-decode` as well, which no filter keeps there; none left is 503, not 429",
    "disagg-headers-handler": "it does nothing and is checked against the profile handler",
    "disagg-profile-handler": "decode-first shows the decode server as peer to the other stages; a server is "
    "not sent to itself; a server that stopped answering scrapes gets no optional stage; a profile that can "
    "never run is refused",
    "disaggregatedset-rollout-screener": "no complete revision: all stay; it has no metrics of its own",
    "encode-filter": "keeps `encode-decode` as well",
    "endpoint-attribute-filter": "an attribute is unknown after 2 s; one that no plugin writes is refused",
    "endpoint-attribute-scorer": "as endpoint-attribute-filter",
    "program-aware-fairness": "the service of a request counts from its dispatch, by its expected answer",
    "round-robin-fairness-policy": "in the order in which flows came to wait, not of their names",
    "slo-deadline-ordering-policy": "times below 10 ms and above an hour are clamped",
    "soft-reflective-ceiling-policy": "a call is a look at the queue, on an event and not by a timer",
    "token-fairness-policy": "only here",
    "header-based-testing-filter": "without the header it keeps all, and so it does when the header names "
    "none of them",
    "header-profile-handler": "an unknown profile is 503, not 429; a `defaultProfile` that is no profile "
    "is refused",
    "inflight-load-producer": "the ledger is built in and always on; this adds expected answers; "
    "replicas share nothing",
    "endpoint-notification-source": "it does nothing: the picker follows endpoints without being asked to",
    "kv-cache-utilization-scorer": "unknown usage scores 0, not 1",
    "latency-scorer": "an endpoint without a prediction scores 0, not as one without headroom; where all "
    "miss, the headroom of an objective that is met does not count; the names of "
    "producers are no parameters; an unknown strategy is refused",
    "latency-slo-admitter": "a refusal is 429, not 500; one objective of the two is judged alone",
    "label-selector-filter": "none left is 503, not 429",
    "load-aware-scorer": "counts what was sent since the last scrape; an unknown queue scores 0, not 0.5",
    "lora-affinity-scorer": "remembers idle adapters (`rememberIdle` is no parameter there); an adapter that "
    "runs and waits takes one slot, not two",
    "max-score-picker": "`maxNumOfEndpoints` is 3, so that a dead primary has fallbacks",
    "metrics-data-source": "https is verified unless insecureSkipVerify says otherwise; a token may go along",
    "mm-embeddings-cache-producer": "items weigh alike unless the tokens are known; it needs no notification "
    "source",
    "no-hit-lru-scorer": "one producer of prefix matches is used for all plugins; another name is refused",
    "openai-parser": "without passthrough-parser it reads JSON bodies on all paths",
    "passthrough-parser": "it acts only where a configuration names it; there it is the last one by default",
    "pd-profile-handler": "the names of producers are no parameters: each output has one producer; a prefill "
    "profile needs `deciderPluginName`",
    "prefix-based-pd-decider": "reads the match of whatever producer the configuration has; its stage's "
    "candidates are matched also where no scorer asks for it",
    "prefix-cache-affinity-filter": "`ttftSource: latencyPredictor` is refused until there is a predictor",
    "precise-prefix-cache-producer": "the approximate index answers where events cannot; bounded by blocks, "
    "2,500,000; no engine setting must match; `ranks` and `maxBlocksPerServer` are only here; Redis is not "
    "offered; more: docs/prefix-cache.md",
    "predicted-latency-producer": "the servers are the picker's flag, not environment variables; pools "
    "of any size; `contextTTL`, the names of producers and `useEncoderCacheFeatures` are no parameters; "
    "`mode`, budget, quantile, holdout and `endpointClassLabel` are only here",
    "prefix-cache-scorer": "one producer of prefix matches is used for all plugins; another name is refused",
    "probabilistic-admitter": "a refusal is 429, not 500; it counts what was sent since the last scrape",
    "queue-scorer": "counts what was sent since the last scrape, by the endpoint's speed; an unknown "
    "queue scores 0 while one is known",
    "random-picker": "`maxNumOfEndpoints` is 3",
    "request-attribute-reporter": "a part of CEL; of the details `cached_tokens` alone",
    "running-requests-size-scorer": "as queue-scorer",
    "slo-headroom-tier-filter": "a request without an objective passes",
    "session-affinity-filter": "tokens and session ids are bounded (1,024 and 256 characters, 100,000 "
    "sessions); the session follows the endpoint that answered; no token for an error of the server",
    "session-affinity-scorer": "as session-affinity-filter",
    "session-id-producer": "it is not added by itself",
    "token-producer": "by default it asks the pool's own servers (`modelServers`); a request waits for "
    "`budget`, 50 ms, not for `timeout`; `estimate` has no tokens and no settings; `local` is only here",
    "topology-affinity-filter": "refused without a profile handler that chooses a peer",
    "topology-affinity-scorer": "as topology-affinity-filter",
    "topology-extractor": "the host is the pod's node unless hostnameLabel names a label",
    "token-load-scorer": "the name of the producer is no parameter: the ledger counts tokens",
    "utilization-detector": "counts what was sent since the last scrape; `headroom`, which only its filter "
    "reads, is refused without one",
    "utilization-filter": "an unknown signal does not meet a limit while it is known of another server; "
    "it counts what was sent since the last scrape",
    "weighted-random-picker": "`maxNumOfEndpoints` is 3",
}


def main() -> None:
    """Write the page, or compare it."""
    page = text()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page)
    elif not PAGE.exists() or PAGE.read_text() != page:
        sys.exit(f"{PAGE.name} differs from the plugin classes; make plugin-page writes it")


def text() -> str:
    """Return the page."""
    registry = Registry.installed()
    own = {name: registry.find(name, "") for name in registry.types}
    own = {name: kind for name, kind in own.items() if kind.__module__.startswith("endpoint_picker.")}
    parts = [_HEAD]
    for title, base in _KINDS.items():
        of_kind = [name for name, kind in own.items() if _KINDS[_title(kind)] is base]
        parts.append(f"## {title}\n")
        parts.extend(_section(name, own[name]) for name in of_kind)
    parts.append(_compared(sorted(own)))
    return "\n".join(parts)


def _title(kind: type[Plugin]) -> str:
    return next(title for title, base in _KINDS.items() if issubclass(kind, base))


def _section(name: str, kind: type[Plugin]) -> str:
    lines = [f"### `{name}`", "", inspect.cleandoc(kind.__doc__ or ""), ""]
    rows = _rows(kind.params_type, "")
    if rows:
        lines += ["| parameter | default | meaning |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _rows(model: type[BaseModel], prefix: str) -> list[str]:
    meanings = _meanings(model)
    rows = []
    for name, field in model.model_fields.items():
        default = _default(field.get_default(call_default_factory=True))
        meaning = " ".join(meanings.get(name, "").split())
        if choices := _choices(field.annotation):
            listed = ", ".join(f"`{each}`" for each in choices)
            meaning += f" One of {listed}." if len(choices) > 1 else f" The only value is {listed}."
        rows.append(f"| `{prefix}{field.alias}` | {default} | {meaning} |")
        inner = _model_in(field.annotation)
        if inner is not None:
            many = "[]" if get_origin(field.annotation) is tuple else ""
            rows += _rows(inner, f"{prefix}{field.alias}{many}.")
    return rows


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if value in (None, (), {}) or isinstance(value, BaseModel):
        return ""
    if isinstance(value, tuple) and isinstance(value[0], BaseModel):
        value = [each.model_dump(by_alias=True, exclude_none=True) for each in value]
    return f"`{json.dumps(value)}`"


def _choices(annotation: Any) -> list[str]:
    """Return the values of a Literal or an Enum, also of an optional one."""
    if get_origin(annotation) is Literal:
        return [str(each) for each in get_args(annotation)]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [str(each.value) for each in annotation]
    if get_origin(annotation) in (Union, UnionType, Annotated):
        return [found for each in get_args(annotation) for found in _choices(each)]
    return []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in getattr(annotation, "__args__", ()) if (found := _model_in(each))), None)


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstring that follows each field in the sources of the class and its bases."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if issubclass(each, BaseModel) and each.__module__.startswith("endpoint_picker."):
            found.update(_own_meanings(each))
    return found


def _own_meanings(model: type[BaseModel]) -> dict[str, str]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    body: list[ast.stmt] = getattr(definition, "body", [])
    found = {}
    for field, after in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            found[field.target.id] = str(after.value.value)
    return found


def _compared(own: list[str]) -> str:
    """Return the table of the ecosystem's types. A type in both lists, or a stale difference, is an error."""
    both = set(own) & set(NOT_OFFERED)
    stale = set(_DIFFERENCES) - set(own)
    if both or stale:
        raise SystemExit(f"docs/plugin_page.py: offered by now: {sorted(both)}; not offered: {sorted(stale)}")
    lines = ["## The llm-d router's types", "", "| type | here |", "|---|---|"]
    for name in sorted({*own, *NOT_OFFERED}):
        said = NOT_OFFERED.get(name) or (
            f"different: {_DIFFERENCES[name]}" if name in _DIFFERENCES else "the same"
        )
        lines.append(f"| `{name}` | {said} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
