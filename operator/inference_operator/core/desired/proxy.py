"""The standalone proxy of a pool: Deployment and Service. Pure.

The proxy has its own pods: as a container of the picker's pod it would become unready, and leave its Service,
whenever the picker does.
"""

from typing import Any, Final

from inference_api import names
from inference_api.endpoint_picker import ProxyMode
from inference_api.inference_pool import FAIL_OPEN, H2C
from inference_operator.core.desired.intent import Intent, intent
from inference_operator.core.desired.ports import picker_ports
from inference_operator.core.desired.proxy_bootstrap import ProxySettings, proxy_args
from inference_operator.core.desired.security import container_security, field_env, pod_security
from inference_operator.core.kinds import DEPLOYMENT, SERVICE, Object
from inference_operator.core.naming import (
    PROXY_CONTAINER,
    SERVICE_NAME_LIMIT,
    child_labels,
    child_metadata,
    proxy_name,
    selector_labels,
)
from inference_operator.core.observation import Observation

GRACE_SECONDS: Final = 60
#: Seconds that preStop delays SIGTERM, at which Envoy exits at once: clients need them to see the
#: EndpointSlice without this pod.
LEAVE_SECONDS: Final = 10
#: Seconds allowed until the proxy is ready. It waits for the picker's first answer, and pulling the picker's
#: image may take minutes.
STARTUP_SECONDS: Final = 600
_ENVOY_UID: Final = 101
DEFAULT_RESOURCES: Final[dict[str, dict[str, str]]] = {
    "requests": {"cpu": "500m", "memory": "256Mi"},
    "limits": {"memory": "2Gi"},
}


def asked(seen: Observation) -> bool:
    """Return whether the user wants a proxy in front of the pool."""
    return seen.spec.proxy.mode is ProxyMode.DEPLOYMENT


def nameable(seen: Observation) -> bool:
    """Return whether the proxy's name, longer than the picker's, can name a Service."""
    return len(proxy_name(seen.picker_name)) <= SERVICE_NAME_LIMIT


def desired(seen: Observation) -> tuple[Intent, ...]:
    """Return the proxy's Service and Deployment; nothing if none is asked for or its name is too long."""
    if not (asked(seen) and nameable(seen)):
        return ()
    name = proxy_name(seen.picker_name)
    service = intent(
        SERVICE,
        child_metadata(seen, name, name),
        spec={
            "selector": selector_labels(name),
            "ports": [_service_port("http", names.PROXY_PORT)],
        },
    )
    deployment = intent(
        DEPLOYMENT,
        child_metadata(seen, name, name),
        spec={
            "replicas": seen.spec.proxy.replicas,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "selector": {"matchLabels": selector_labels(name)},
            "template": {
                "metadata": {"labels": child_labels(seen, name)},
                "spec": {
                    "automountServiceAccountToken": False,
                    "terminationGracePeriodSeconds": GRACE_SECONDS,
                    # Envoy's image starts as root and drops to this uid, which runAsNonRoot forbids.
                    "securityContext": {**pod_security(), "runAsUser": _ENVOY_UID, "runAsGroup": _ENVOY_UID},
                    "containers": [_container(seen)],
                },
            },
        },
    )
    return service, deployment


def proxy_settings(seen: Observation) -> ProxySettings:
    """Return the settings of the proxy's bootstrap."""
    pool, ref = seen.present, seen.picker_ref
    return ProxySettings(
        pool_namespace=seen.namespace,
        pool_name=seen.pool_name,
        picker_host=f"{seen.picker_name}.{seen.namespace}.svc",
        picker_port=picker_ports(seen).ext_proc,
        fail_open=ref is not None and ref.failure_mode == FAIL_OPEN,
        upstream_http2=pool.spec.app_protocol == H2C,
        localhost=seen.settings.proxy_localhost,
    )


def _container(seen: Observation) -> Object:
    proxy = seen.spec.proxy
    resources: Any = DEFAULT_RESOURCES if proxy.resources is None else proxy.resources.to_json()
    return {
        "name": PROXY_CONTAINER,
        "image": proxy.image or seen.settings.proxy_image,
        "args": proxy_args(proxy_settings(seen)),
        "env": [field_env("POD_IP", "status.podIP")],
        "ports": [
            {"name": "http", "containerPort": names.PROXY_PORT, "protocol": "TCP"},
            {"name": "status", "containerPort": names.PROXY_STATUS_PORT, "protocol": "TCP"},
        ],
        "startupProbe": _probe(periodSeconds=1, failureThreshold=STARTUP_SECONDS),
        "livenessProbe": _alive(),
        "readinessProbe": _probe(periodSeconds=2, failureThreshold=2, timeoutSeconds=1),
        "lifecycle": {"preStop": {"sleep": {"seconds": LEAVE_SECONDS}}},
        "resources": resources,
        "securityContext": container_security(),
    }


def _probe(**timing: int) -> Object:
    return {"httpGet": {"path": names.PROXY_READY_PATH, "port": names.PROXY_STATUS_PORT}, **timing}


def _alive() -> Object:
    return {
        "tcpSocket": {"port": names.PROXY_STATUS_PORT},
        "periodSeconds": 10,
        "failureThreshold": 3,
        "timeoutSeconds": 3,
    }


def _service_port(name: str, port: int) -> Object:
    return {"name": name, "port": port, "targetPort": port, "protocol": "TCP", "appProtocol": "http"}
