"""The values that the parts of a picker take from a configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from endpoint_picker.datalayer.scrape_plan import ScrapePlan
from endpoint_picker.decision import BodyReading
from endpoint_picker.flowcontrol.settings import FlowSettings
from endpoint_picker.scheduling.scheduler import Scheduling


@dataclass(frozen=True, slots=True)
class PickerConfig:
    """A configuration without faults, built."""

    scheduling: Scheduling
    scrape: ScrapePlan | None
    """None: no metrics are read; scorers use the ledger."""
    exporter: ScrapePlan | None = None
    """Pages of exporters beside the servers; None: there are none."""
    reading: BodyReading = field(default_factory=lambda: BodyReading(frozenset()))
    flow: FlowSettings | None = None
    """None: flow control is off."""
    warnings: tuple[str, ...] = ()
    """Deprecated names that were used, and producers that do not run."""
    effective: Mapping[str, Any] = field(default_factory=dict)
    """The configuration with defaults filled in and added plugins listed."""
