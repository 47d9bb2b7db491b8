"""The two ConfigMaps that a picker watches: its configuration and its priority table. Pure."""

from typing import Any, Final

import yaml
from pydantic import ValidationError

from inference_api import names
from inference_api.default_picker_config import (
    DEFAULT_PICKER_CONFIG,
    PREDICTED_PICKER_CONFIG,
    PREDICTION_PRODUCER,
)
from inference_api.endpoint_picker import CONFIG_API_VERSIONS, CONFIG_KIND, EndpointPickerSpec
from inference_api.latency_predictor import LatencyPredictorSpec
from inference_api.priority_table import ObjectiveEntry, PriorityTable, RewriteEntry
from inference_operator.core.desired.intent import Intent, intent
from inference_operator.core.kinds import CONFIG_MAP
from inference_operator.core.naming import child_metadata, config_name, priorities_name
from inference_operator.core.observation import Observation
from inference_operator.core.rewrites import compiled

#: Feature gate of the EndpointPickerConfig that lets requests wait.
FLOW_CONTROL_GATE: Final = "flowControl"


def desired(seen: Observation) -> tuple[Intent, Intent]:
    """Return the configuration and the priority table."""
    picker = seen.picker_name
    return (
        intent(
            CONFIG_MAP,
            child_metadata(seen, config_name(picker), picker),
            data={names.CONFIG_KEY: config_text(seen.spec)},
        ),
        intent(
            CONFIG_MAP,
            child_metadata(seen, priorities_name(picker), picker),
            data={names.PRIORITIES_KEY: _priorities_text(seen)},
        ),
    )


def _priorities_text(seen: Observation) -> str:
    """Return the table; while objectives or rewrites cannot be read, those in the ConfigMap stay."""
    live = seen.child(CONFIG_MAP, priorities_name(seen.picker_name))
    access, table = seen.access, priority_table(seen)
    text = "" if live is None else str((live.get("data") or {}).get(names.PRIORITIES_KEY, ""))
    if text and access.objectives in access.blind:
        return text
    if text and access.rewrites in access.blind:
        table = table.model_copy(update={"rewrites": _written_rewrites(text)})
    return table.dump()


def _written_rewrites(text: str) -> tuple[RewriteEntry, ...]:
    try:
        return PriorityTable.model_validate_json(text).rewrites
    except ValidationError:
        return ()


def config_text(spec: EndpointPickerSpec) -> str:
    """Return the EndpointPickerConfig as YAML: the user's with apiVersion and kind added, or the default.

    `spec.flowControl` adds to either what switches the queue on, `spec.latencyPredictor` the parameters of
    the producer of predictions; a setting of the user's configuration stays.
    """
    flow, predictor = spec.flow_control, spec.latency_predictor
    default = PREDICTED_PICKER_CONFIG if predictor.enabled else DEFAULT_PICKER_CONFIG
    if not flow.enabled and not predictor.enabled and spec.config is None:
        return default
    given = yaml.safe_load(default) if spec.config is None else spec.config
    body = {"apiVersion": CONFIG_API_VERSIONS[0], "kind": CONFIG_KIND, **given}
    if flow.enabled:
        body["featureGates"] = _with_gate(body.get("featureGates"))
    if flow.trust_tenant_headers and isinstance(section := body.get("flowControl", {}), dict):
        body["flowControl"] = {"trustTenantHeaders": True, **section}
    if predictor.enabled and isinstance(plugins := body.get("plugins"), list):
        body["plugins"] = [_with_prediction(each, predictor) for each in plugins]
    return yaml.safe_dump(body, sort_keys=False, allow_unicode=True)


def predicts(spec: EndpointPickerSpec) -> bool:
    """Return whether the configuration has the plugin that asks the prediction servers."""
    if spec.config is None:
        return spec.latency_predictor.enabled
    plugins = spec.config.get("plugins")
    return isinstance(plugins, list) and any(_is_producer(each) for each in plugins)


def _is_producer(plugin: object) -> bool:
    return isinstance(plugin, dict) and plugin.get("type") == PREDICTION_PRODUCER


def _with_prediction(plugin: Any, spec: LatencyPredictorSpec) -> Any:
    """Return the plugin; the producer of predictions with the parameters of `spec.latencyPredictor`."""
    if not _is_producer(plugin):
        return plugin
    own = plugin.get("parameters")
    if own is not None and not isinstance(own, dict):
        return plugin
    parameters = {
        "mode": str(spec.mode),
        "streamingMode": spec.streaming_mode,
        "quantile": spec.quantile,
        "holdoutPercent": spec.holdout,
    }
    return {**plugin, "parameters": {**parameters, **(own or {})}}


def _with_gate(gates: Any) -> Any:
    """Return the feature gates with flow control's; what is no list is left for the picker to refuse."""
    if gates is None:
        return [FLOW_CONTROL_GATE]
    return (
        [*gates, FLOW_CONTROL_GATE] if isinstance(gates, list) and FLOW_CONTROL_GATE not in gates else gates
    )


def has_written_priorities(seen: Observation) -> bool:
    """Return whether the ConfigMap that was observed has the present priorities of all objectives."""
    live = seen.child(CONFIG_MAP, priorities_name(seen.picker_name))
    return live is not None and (live.get("data") or {}).get(names.PRIORITIES_KEY) == _priorities_text(seen)


def priority_table(seen: Observation) -> PriorityTable:
    """Return the priorities of the pool's objectives and its rewrites that are not being deleted, and which
    requests without a header have which objective."""
    flow = seen.spec.flow_control
    return PriorityTable(
        objectives={
            objective.metadata.name: ObjectiveEntry(
                priority=(objective.spec.priority or 0) if objective.spec else 0,
                generation=objective.metadata.generation,
            )
            for objective in seen.objectives
            if objective.metadata.deletion_timestamp is None
        },
        rewrites=compiled(seen.rewrites),
        default_objective=flow.default_objective or "",
        model_objectives={each.model: each.objective for each in flow.model_objectives},
    )


def objectives_not_found(seen: Observation) -> list[str]:
    """Return the objectives that spec.flowControl names and the pool does not have, sorted."""
    table = priority_table(seen)
    named = {table.default_objective, *table.model_objectives.values()} - {""}
    return sorted(named - table.objectives.keys())
