"""The sidecars that predict latency: a trainer and prediction servers in the picker's pod. Pure.

They meet the picker on UNIX sockets of a shared folder. Samples and models lie on another, so that a sidecar
that starts again goes on. A container of them is ready once it has started, and stays so: one that fails is
started again inside its container (`--supervise`), since a pod with an unready container leaves the picker's
Service, and its picker with it.
"""

from typing import Final

from cluster_client.durations import parse_duration
from inference_api.container import ResourceRequirements
from inference_operator.core.desired.ports import predictor_ports
from inference_operator.core.desired.security import container_security, field_env
from inference_operator.core.kinds import Object
from inference_operator.core.naming import PREDICTOR_CONTAINER, TRAINER_CONTAINER
from inference_operator.core.observation import Observation

SOCKETS: Final = "predictor-sockets"
DATA: Final = "predictor-data"
ARCHIVE: Final = "predictor-archive"
_SOCKETS_DIR: Final = "/run/headroom"
_DATA_DIR: Final = "/var/lib/headroom"
_ARCHIVE_DIR: Final = "/var/lib/headroom-archive"
_SAMPLES: Final = f"{_DATA_DIR}/samples"
_MODELS: Final = f"{_DATA_DIR}/models"
_TRAINER_SOCKET: Final = f"unix:{_SOCKETS_DIR}/trainer.sock"

#: Seconds for which a starting trainer may fetch from the older pod.
PEER_SECONDS: Final = 60
#: Seconds within which a sidecar has to have started.
START_SECONDS: Final = PEER_SECONDS + 60
#: Seconds that preStop delays SIGTERM, some more than the picker's, which takes requests as long.
LEAVE_SECONDS: Final = 15

TRAINER_RESOURCES: Final[Object] = {
    "requests": {"cpu": "250m", "memory": "512Mi"},
    "limits": {"memory": "2Gi"},
}
SERVER_RESOURCES: Final[Object] = {
    "requests": {"cpu": "500m", "memory": "256Mi"},
    "limits": {"memory": "1Gi"},
}


def is_on(seen: Observation) -> bool:
    """Return whether the EndpointPicker asks for prediction."""
    return seen.spec.latency_predictor.enabled


def containers(seen: Observation) -> list[Object]:
    """Return the sidecars: the trainer, then the prediction servers."""
    if not is_on(seen):
        return []
    return [_trainer(seen), *(_server(seen, number) for number in range(_count(seen)))]


def volumes(seen: Observation) -> list[Object]:
    """Return the volumes that the sidecars need."""
    if not is_on(seen):
        return []
    storage = seen.spec.latency_predictor.storage
    claim = storage.claim_name
    return [
        {"name": SOCKETS, "emptyDir": {"sizeLimit": "1Mi"}},
        {"name": DATA, "emptyDir": {"sizeLimit": str(storage.size_limit)}},
        *([{"name": ARCHIVE, "persistentVolumeClaim": {"claimName": claim}}] if claim else []),
    ]


def picker_mounts(seen: Observation) -> list[Object]:
    """Return what the picker's container mounts for prediction."""
    return [{"name": SOCKETS, "mountPath": _SOCKETS_DIR}] if is_on(seen) else []


def picker_args(seen: Observation) -> list[str]:
    """Return the picker's flags for prediction."""
    if not is_on(seen):
        return []
    servers = [f"--predictor={_server_socket(number)}" for number in range(_count(seen))]
    return [*servers, f"--trainer={_TRAINER_SOCKET}"]


def service_ports(seen: Observation) -> list[Object]:
    """Return the port of the picker's Service at which a starting trainer finds the older one."""
    if not is_on(seen):
        return []
    port = predictor_ports(seen).peers
    return [{"name": "grpc-trainer", "port": port, "targetPort": port, "protocol": "TCP"}]


def _count(seen: Observation) -> int:
    return seen.spec.latency_predictor.prediction_server_count


def _server_socket(number: int) -> str:
    return f"unix:{_SOCKETS_DIR}/predictor-{number}.sock"


def _trainer(seen: Observation) -> Object:
    spec, ports = seen.spec.latency_predictor, predictor_ports(seen)
    claimed = spec.storage.claim_name is not None
    quantile = f"{spec.quantile:g}"
    quantiles = ",".join(f"{each:g}" for each in sorted({0.5, spec.quantile}))
    args = [
        "--supervise",
        f"--data={_SAMPLES}",
        f"--models={_MODELS}",
        f"--listen={_TRAINER_SOCKET}",
        # For `headroom predictor`, through kubectl port-forward.
        f"--listen=localhost:{ports.control}",
        f"--serve-peers=$(POD_IP):{ports.peers}",
        f"--status-http=$(POD_IP):{ports.trainer_http}",
        "--http=",
        f"--peer={seen.picker_name}.{seen.namespace}:{ports.peers}",
        f"--peer-timeout={PEER_SECONDS}",
        *([f"--archive={_ARCHIVE_DIR}/{seen.picker_name}.export"] if claimed else []),
        f"--quantiles={quantiles}",
        f"--bound={quantile}",
        f"--least-samples={spec.retrain.least_samples}",
        f"--longest-pause={parse_duration(spec.retrain.longest_pause):g}",
        f"--max-age={parse_duration(spec.retrain.max_age):g}",
    ]
    mounts: list[Object] = [
        {"name": SOCKETS, "mountPath": _SOCKETS_DIR},
        {"name": DATA, "mountPath": _DATA_DIR},
        *([{"name": ARCHIVE, "mountPath": _ARCHIVE_DIR}] if claimed else []),
    ]
    return {
        "name": TRAINER_CONTAINER,
        # The image's entry point is the prediction server.
        "command": ["headroom-trainer"],
        "args": args,
        "ports": [
            {"name": "grpc-control", "containerPort": ports.control, "protocol": "TCP"},
            {"name": "grpc-trainer", "containerPort": ports.peers, "protocol": "TCP"},
            {"name": "http-trainer", "containerPort": ports.trainer_http, "protocol": "TCP"},
        ],
        **_common(seen, ports.trainer_http),
        "resources": _resources(spec.resources.trainer, TRAINER_RESOURCES),
        "volumeMounts": mounts,
    }


def _server(seen: Observation, number: int) -> Object:
    spec, port = seen.spec.latency_predictor, predictor_ports(seen).servers_http[number]
    return {
        "name": f"{PREDICTOR_CONTAINER}-{number}",
        "args": [
            "--supervise",
            f"--models={_MODELS}",
            f"--listen={_server_socket(number)}",
            f"--status-http=$(POD_IP):{port}",
            "--http=",
            f"--quantile={spec.quantile:g}",
        ],
        "ports": [{"name": f"http-predict-{number}", "containerPort": port, "protocol": "TCP"}],
        **_common(seen, port),
        "resources": _resources(spec.resources.prediction_server, SERVER_RESOURCES),
        "volumeMounts": [
            {"name": SOCKETS, "mountPath": _SOCKETS_DIR},
            {"name": DATA, "mountPath": _DATA_DIR, "readOnly": True},
        ],
    }


def _common(seen: Observation, port: int) -> Object:
    return {
        "image": seen.spec.latency_predictor.image or seen.settings.predictor_image,
        "env": [field_env("POD_IP", "status.podIP")],
        # The only probe: a picker's pod must not become unready for want of predictions. What hangs later is
        # found by --supervise.
        "startupProbe": {
            "httpGet": {"path": "/readyz", "port": port},
            "periodSeconds": 1,
            "failureThreshold": START_SECONDS,
        },
        "lifecycle": {"preStop": {"sleep": {"seconds": LEAVE_SECONDS}}},
        "securityContext": container_security(),
    }


def _resources(given: ResourceRequirements | None, default: Object) -> Object:
    return default if given is None else given.to_json()
