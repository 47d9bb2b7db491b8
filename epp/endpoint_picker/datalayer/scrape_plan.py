"""What is read of the model servers: plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from endpoint_picker.datalayer.metrics_page import ENGINES, Engine


@dataclass(frozen=True, slots=True)
class ScrapePlan:
    """Where a server's metrics page is, and whose series are on it."""

    path: str
    """Path of the page on the endpoint's own port."""
    engine_label_key: str
    """Pod label that names the engine."""
    default_engine: str
    """Engine of a pod without the label, or with a value that is not known."""
    engines: Mapping[str, Engine] = field(default_factory=lambda: ENGINES)
    """All engines by name."""
