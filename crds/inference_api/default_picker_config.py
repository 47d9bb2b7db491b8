"""The default EndpointPickerConfigs: one text for the operator and the picker."""

from typing import Final

_SCORERS: Final = """\
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: max-score-picker
"""
_PROFILE: Final = """\
- name: default
  plugins:
  - pluginRef: queue-scorer
    weight: 2
  - pluginRef: kv-cache-utilization-scorer
    weight: 2
  - pluginRef: prefix-cache-scorer
    weight: 3
  - pluginRef: max-score-picker
"""

DEFAULT_PICKER_CONFIG: Final = f"""\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
{_SCORERS}schedulingProfiles:
{_PROFILE}"""

#: Type of the plugin that asks the prediction servers.
PREDICTION_PRODUCER: Final = "predicted-latency-producer"

#: The default with `spec.latencyPredictor.enabled`. The operator writes the producer's parameters.
PREDICTED_PICKER_CONFIG: Final = f"""\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: prediction-profile-handler
- type: predicted-latency-producer
- type: prefix-cache-affinity-filter
  parameters:
    ttftSource: latencyPredictor
    maxTTFTPenaltyMs: 5000
- type: slo-headroom-tier-filter
- type: latency-scorer
- type: latency-slo-admitter
{_SCORERS}schedulingProfiles:
- name: predicted
  plugins:
  - pluginRef: prefix-cache-affinity-filter
  - pluginRef: slo-headroom-tier-filter
  - pluginRef: latency-scorer
  - pluginRef: max-score-picker
{_PROFILE}"""
