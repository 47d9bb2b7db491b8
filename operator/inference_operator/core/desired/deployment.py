"""The Deployment that runs the picker. Pure."""

from typing import Any, Final

from inference_api import names
from inference_api.endpoint_picker import EndpointPickerSpec
from inference_operator.core.desired import predictor
from inference_operator.core.desired.intent import Intent, intent
from inference_operator.core.desired.ports import PickerPorts, picker_ports
from inference_operator.core.desired.security import container_security, field_env, pod_security
from inference_operator.core.kinds import DEPLOYMENT, Object
from inference_operator.core.naming import (
    PICKER_CONTAINER,
    child_labels,
    child_metadata,
    config_name,
    priorities_name,
    selector_labels,
)
from inference_operator.core.observation import Observation

REPLICAS: Final = 1
"""One, until pickers elect a leader: two would each keep a ledger and a prefix index of half the requests."""
DRAIN_SECONDS: Final = 30
"""Seconds after SIGTERM during which a picker still serves its open streams (`--drain-timeout`)."""
LEAVE_SECONDS: Final = 10
"""Seconds that preStop delays SIGTERM, so that a replaced picker serves until gateways use the new one.

Without them Envoy sees the old picker's health check fail before DNS or EndpointSlices name the new one, and
answers 503 where failureMode is FailClose.
"""
GRACE_SECONDS: Final = LEAVE_SECONDS + DRAIN_SECONDS + 15
"""Seconds between a pod's deletion and SIGKILL: leave, drain, room to close."""
HUNG_GRACE_SECONDS: Final = 5
"""Seconds after which the kubelet kills a picker whose liveness probe failed."""
DEFAULT_RESOURCES: Final[dict[str, dict[str, str]]] = {
    "requests": {"cpu": "500m", "memory": "512Mi"},
    "limits": {"memory": "2Gi"},
}
"""No CPU limit: throttling would add latency to every request."""


def desired(seen: Observation) -> Intent:
    """Return the picker's Deployment."""
    name = seen.picker_name
    return intent(
        DEPLOYMENT,
        child_metadata(seen, name, name),
        spec={
            "replicas": REPLICAS,
            # The old picker goes only once the new one is ready: with failureMode FailClose a gap is an
            # outage.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "selector": {"matchLabels": selector_labels(name)},
            "template": {
                "metadata": {"labels": child_labels(seen, name)},
                "spec": {
                    "serviceAccountName": name,
                    "terminationGracePeriodSeconds": GRACE_SECONDS,
                    "securityContext": pod_security(),
                    "containers": [_container(seen), *predictor.containers(seen)],
                    "volumes": [
                        {"name": "config", "configMap": {"name": config_name(name), "optional": True}},
                        {
                            "name": "priorities",
                            "configMap": {"name": priorities_name(name), "optional": True},
                        },
                        *predictor.volumes(seen),
                    ],
                },
            },
        },
    )


def _container(seen: Observation) -> Object:
    spec = seen.spec
    ports = picker_ports(seen)
    resources: Any = DEFAULT_RESOURCES if spec.resources is None else spec.resources.to_json()
    return {
        "name": PICKER_CONTAINER,
        "image": spec.image or seen.settings.epp_image,
        "args": _args(seen, ports),
        "env": [
            field_env("POD_IP", "status.podIP"),
            field_env("POD_NAME", "metadata.name"),
            field_env("NAMESPACE", "metadata.namespace"),
        ],
        "ports": [
            {"name": "grpc-ext-proc", "containerPort": ports.ext_proc, "protocol": "TCP"},
            {"name": "grpc-health", "containerPort": ports.health, "protocol": "TCP"},
            {"name": "http-metrics", "containerPort": ports.metrics, "protocol": "TCP"},
        ],
        "startupProbe": _probe(ports, "liveness", periodSeconds=1, failureThreshold=60),
        "livenessProbe": _probe(
            ports,
            "liveness",
            periodSeconds=5,
            failureThreshold=3,
            timeoutSeconds=3,
            # A picker that answers no probe does not drain either: waiting for GRACE_SECONDS would only
            # prolong the outage.
            terminationGracePeriodSeconds=HUNG_GRACE_SECONDS,
        ),
        "readinessProbe": _probe(
            ports, names.HEALTH_SERVICE, periodSeconds=1, failureThreshold=2, timeoutSeconds=1
        ),
        "lifecycle": {"preStop": {"sleep": {"seconds": LEAVE_SECONDS}}},
        "resources": resources,
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "config", "mountPath": names.CONFIG_DIR, "readOnly": True},
            {"name": "priorities", "mountPath": names.PRIORITIES_DIR, "readOnly": True},
            *predictor.picker_mounts(seen),
        ],
    }


def _args(seen: Observation, ports: PickerPorts) -> list[str]:
    picker = seen.picker_name
    return [
        f"--pool-name={seen.pool_name}",
        f"--pool-namespace={seen.namespace}",
        f"--grpc-port={ports.ext_proc}",
        f"--grpc-health-port={ports.health}",
        f"--metrics-port={ports.metrics}",
        "--secure-serving=true",
        f"--config-map={config_name(picker)}",
        f"--config-file={names.CONFIG_DIR}/{names.CONFIG_KEY}",
        f"--priorities-map={priorities_name(picker)}",
        f"--priorities-file={names.PRIORITIES_DIR}/{names.PRIORITIES_KEY}",
        f"--drain-timeout={DRAIN_SECONDS}s",
        *_observability(seen.spec),
        *predictor.picker_args(seen),
    ]


def _observability(spec: EndpointPickerSpec) -> list[str]:
    """Return the flags of what is off by default."""
    flags = ["--access-log"] if spec.access_log else []
    if spec.tracing is not None:
        flags.append(f"--tracing-endpoint={spec.tracing.endpoint}")
        flags.append(f"--tracing-sampling-percent={spec.tracing.sampling_percent}")
    return flags


def _probe(ports: PickerPorts, service: str, **timing: int) -> Object:
    return {"grpc": {"port": ports.health, "service": service}, **timing}
