"""The Service that the pool points at. Pure."""

from inference_api.inference_pool import H2C
from inference_operator.core.desired import predictor
from inference_operator.core.desired.intent import Intent, intent
from inference_operator.core.desired.ports import picker_ports
from inference_operator.core.kinds import SERVICE
from inference_operator.core.naming import child_metadata, selector_labels
from inference_operator.core.observation import Observation


def desired(seen: Observation) -> Intent:
    """Return the picker's Service.

    Every port equals its target port: a client that resolves the name to pod addresses uses the same ports.
    """
    ports = picker_ports(seen)
    return intent(
        SERVICE,
        child_metadata(seen, seen.picker_name, seen.picker_name),
        claimed=True,
        spec={
            "selector": selector_labels(seen.picker_name),
            "ports": [
                {
                    "name": "grpc-ext-proc",
                    "port": ports.ext_proc,
                    "targetPort": ports.ext_proc,
                    "protocol": "TCP",
                    "appProtocol": H2C,
                },
                {
                    "name": "http-metrics",
                    "port": ports.metrics,
                    "targetPort": ports.metrics,
                    "protocol": "TCP",
                },
                *predictor.service_ports(seen),
            ],
        },
    )
