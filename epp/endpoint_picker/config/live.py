"""The texts offered to a running picker: the last good ones, and the faults of the last ones. Pure."""

from collections.abc import Callable
from typing import Final

from pydantic import ValidationError

from endpoint_picker.config.build import build
from endpoint_picker.config.picker_config import PickerConfig
from endpoint_picker.config.registry import Registry
from endpoint_picker.config_errors import ConfigError, from_validation
from endpoint_picker.scheduling.objectives import Objectives
from inference_api.offered import Offered, OfferedText
from inference_api.priority_table import PriorityTable

#: Newest format of the priority table that this version reads.
PRIORITY_TABLE_VERSION: Final = 1


class LiveConfig:
    """The last good configuration and priorities. A faulty text changes only `offered`."""

    __slots__ = (
        "_registry",
        "_text",
        "_use",
        "config",
        "config_loads",
        "objectives",
        "offered",
        "priorities_loads",
        "table",
    )

    def __init__(self, registry: Registry, use: Callable[[PickerConfig], None]) -> None:
        """Begin with the default configuration; `use` is called with each later one, and may refuse it."""
        self._registry = registry
        self._use = use
        self._text = ""
        self.config: PickerConfig = build("", registry)
        """In use."""
        self.table = PriorityTable()
        """The priority table in use."""
        self.objectives = Objectives({})
        """What the table says of objectives."""
        self.offered = Offered()
        """The verdicts on the configuration and the priorities offered last."""
        self.config_loads = 0
        """Configurations taken into use; while it is 0, the default one decides."""
        self.priorities_loads = 0

    def apply_config(self, text: str) -> bool:
        """Take a configuration into use; blank is the default one. Return whether it is used."""
        if self.config_loads and not self.offered.config.error and text == self._text:
            return True
        error = ""
        try:
            config = build(text, self._registry)
            self._use(config)
        except ConfigError as fault:
            error = str(fault)
        else:
            self.config = config
            self._text = text
        judged = OfferedText.judged(text, error, replaced=self.config_loads > 0)
        self.offered = self.offered.model_copy(update={"config": judged})
        self.config_loads += not error
        return not error

    def apply_priorities(self, text: str) -> bool:
        """Take a priority table (JSON) into use; blank is an empty one. Return whether it is used."""
        table, error = _priority_table(text)
        if not error:
            self.table = table
            self.objectives = Objectives(
                {name: entry.priority for name, entry in table.objectives.items()},
                table.model_objectives,
                table.default_objective,
            )
        judged = OfferedText.judged(text, error, replaced=self.priorities_loads > 0)
        self.offered = self.offered.model_copy(update={"priorities": judged})
        self.priorities_loads += not error
        return not error


def _priority_table(text: str) -> tuple[PriorityTable, str]:
    """Return the table and ""; for a faulty text an empty table and the fault."""
    try:
        table = PriorityTable.model_validate_json(text) if text.strip() else PriorityTable()
    except ValidationError as error:
        return PriorityTable(), str(from_validation(error))
    if table.version > PRIORITY_TABLE_VERSION:
        newer = f"version: {table.version} is newer than {PRIORITY_TABLE_VERSION}; upgrade the picker"
        return PriorityTable(), newer
    return table, ""
