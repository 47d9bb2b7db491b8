"""Model servers that a simulated pool may have, by name. Pure."""

from collections.abc import Mapping
from typing import Final

from model_server_sim.params import EngineParams
from model_server_sim.presets import PRESETS

DEFAULT_ENGINE: Final = "llama-8b-h100"
ENGINES: Final[Mapping[str, EngineParams]] = PRESETS
