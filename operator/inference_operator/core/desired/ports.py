"""The ports that a picker listens on. Pure."""

from dataclasses import dataclass
from itertools import count, islice
from typing import Final

from inference_api import names
from inference_api.latency_predictor import MOST_SERVERS
from inference_operator.core.observation import Observation


@dataclass(frozen=True, slots=True)
class PickerPorts:
    """The three ports of a picker; all differ."""

    ext_proc: int
    health: int
    metrics: int


def picker_ports(seen: Observation) -> PickerPorts:
    """Return the pool's ext-proc port, and health and metrics ports that differ from it."""
    ref = seen.picker_ref
    ext_proc = names.EXT_PROC_PORT if ref is None or ref.port is None else ref.port.number
    # If the pool uses the default health or metrics port, that service gets the default ext-proc port
    # instead.
    health = names.EXT_PROC_PORT if ext_proc == names.HEALTH_PORT else names.HEALTH_PORT
    metrics = names.EXT_PROC_PORT if ext_proc == names.METRICS_PORT else names.METRICS_PORT
    return PickerPorts(ext_proc, health, metrics)


#: The first port that sidecars may have.
_FIRST: Final = 9010


@dataclass(frozen=True, slots=True)
class PredictorPorts:
    """The ports of the sidecars; none is one of the picker's."""

    control: int
    """Of the trainer, on the pod's loopback address: import, flush, rollback."""
    peers: int
    """Of the trainer: what it has learned, for a newer one."""
    trainer_http: int
    """Of the trainer: metrics and probes."""
    servers_http: tuple[int, ...]
    """Of each prediction server: metrics and probes."""


def predictor_ports(seen: Observation) -> PredictorPorts:
    """Return the sidecars' ports: from 9010 on, those that the picker does not have."""
    ports = picker_ports(seen)
    taken = {ports.ext_proc, ports.health, ports.metrics}
    free = (port for port in count(_FIRST) if port not in taken)
    control, peers, trainer, *servers = islice(free, 3 + MOST_SERVERS)
    wanted = seen.spec.latency_predictor.prediction_server_count
    return PredictorPorts(control, peers, trainer, tuple(servers[:wanted]))
