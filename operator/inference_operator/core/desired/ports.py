"""The ports that a picker listens on. Pure."""

from dataclasses import dataclass

from inference_api import names
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
