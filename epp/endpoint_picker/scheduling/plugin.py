"""The contracts of scheduling plugins. A plugin is a class found by its type string; it does no I/O.

Filters and scorers work on rows of the endpoint table and return arrays; they run for every request, so they
allocate nothing per endpoint, log nothing and never raise.
"""

from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from endpoint_picker.datalayer.table import EndpointTable, Floats, Rows
from endpoint_picker.request import InferenceRequest


class PluginParams(BaseModel):
    """Base of every plugin's parameters: camelCase keys, unknown ones are errors, values are frozen."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False
    )


class NoParams(PluginParams):
    """For a plugin that has nothing to set."""


class Plugin:
    """What every plugin class offers: its type string, its parameter model, a constructor."""

    __slots__ = ()

    type_name: ClassVar[str]
    """Name in the configuration; equal to the name of its entry point."""
    params_type: ClassVar[type[PluginParams]] = NoParams

    def __init__(self, params: Any) -> None:
        """Take the validated parameters, an instance of `params_type`."""


class RandomSource(Protocol):
    """The part of numpy.random.Generator that pickers use."""

    def random(self, size: int) -> Floats:
        """Return `size` floats in [0, 1)."""
        ...


@runtime_checkable
class Filter(Protocol):
    """Narrows the candidates."""

    def filter(self, request: InferenceRequest, rows: Rows, table: EndpointTable) -> Rows:
        """Return those of the rows that stay, in the order given; none is an answer."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """Says how good each candidate is."""

    bounded: ClassVar[bool]
    """True when the class itself keeps to [0, 1] without NaN; others are clamped."""
    needs_prompt: ClassVar[bool]
    """True when it reads the table's prefix columns."""

    def score(self, request: InferenceRequest, rows: Rows, table: EndpointTable) -> Floats:
        """Return float64[len(rows)] in [0, 1]; it is a fresh array that the caller may change."""
        ...


@runtime_checkable
class Picker(Protocol):
    """Chooses among scored candidates."""

    def pick(self, scores: Floats, rng: RandomSource) -> Rows:
        """Return positions in `scores`, best first: the primary, then its fallbacks; at least one."""
        ...
