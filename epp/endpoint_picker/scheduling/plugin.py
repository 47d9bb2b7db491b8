"""The contracts of scheduling plugins. A plugin is a class found by its type string; it does no I/O.

A plugin says what it is by its base classes: `Filter`, `Producer`, `Scorer`, `Picker`, `SaturationDetector`,
`ProfileHandler` (profile_handler.py), and beside these `MayWait` for one that puts decisions off, `Follower`
for one that follows them.
Stages run for every request: they allocate nothing per endpoint, log nothing and never raise.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from endpoint_picker.datalayer.ledger import Ledger
from endpoint_picker.datalayer.prefix_index import PrefixIndex
from endpoint_picker.datalayer.table import EndpointTable, Floats, Rows
from endpoint_picker.decision import Decision, Reservation
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.hold import Hold


class PluginParams(BaseModel):
    """Base of every plugin's parameters: camelCase keys, unknown ones are errors, values are frozen."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False
    )


class NoParams(PluginParams):
    """For a plugin that has nothing to set."""


class RandomSource(Protocol):
    """The part of numpy.random.Generator that pickers use."""

    def random(self, size: int) -> Floats:
        """Return `size` floats in [0, 1)."""
        ...


class Pool:
    """What outlives a configuration and is shared by its plugins. Only the named writers write."""

    __slots__ = ("clock", "index", "ledger", "rng", "table", "wake")

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self.table = EndpointTable()
        self.ledger = Ledger(self.table)
        self.index = PrefixIndex(self.table)
        self.clock = clock
        """Monotonic, in seconds."""
        self.rng: RandomSource
        """The scheduler's randomness; it sets it before a plugin is attached."""
        self.wake: Callable[[], None] = lambda: None
        """Has every `MayWait.advance` called soon: for a plugin whose holds are released by an event."""


class Plugin(ABC):
    """What every plugin class offers: its type string, its parameter model, a constructor."""

    __slots__ = ()

    type_name: ClassVar[str]
    """Name in the configuration; equal to the name of its entry point."""
    params_type: ClassVar[type[PluginParams]] = NoParams
    consumes: ClassVar[frozenset[str]] = frozenset()
    """What it reads of the candidates that a producer has to make first, by name."""

    def __init__(self, params: Any) -> None:  # noqa: B027 - most plugins override it, none must
        """Take the validated parameters, an instance of `params_type`."""

    def attach(self, pool: Pool) -> None:  # noqa: B027 - few plugins need it
        """Take what the pool offers: called when the configuration is taken into use.

        It is called again when another configuration turned out not to be usable.
        """


class Filter(Plugin):
    """Narrows the candidates. It runs once for each attempt at a decision: anew after a wait.

    One that consumes what a producer makes runs after the producers, and so do the filters listed after it.
    """

    __slots__ = ()

    @abstractmethod
    def filter(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Rows:
        """Return those of the candidates' rows that stay, in the order given; none is an answer.

        The array must not be changed afterwards.
        """


class Producer(Plugin):
    """Learns something about the candidates that the filters left, for producers and scorers after it."""

    __slots__ = ()

    produces: ClassVar[frozenset[str]]
    """What it writes into the candidates, by name."""

    @abstractmethod
    def produce(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Hold | None:
        """Write its outputs into the candidates; a `MayWait` may return a hold instead.

        After a wait the decision is made anew from its filters on, as endpoints may have changed;
        `candidates.held` is the released hold then.
        """


class Scorer(Plugin):
    """Says how good each candidate is."""

    __slots__ = ()

    bounded: ClassVar[bool] = False
    """True when the class itself keeps to [0, 1] without NaN; others are clamped."""

    @abstractmethod
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        """Return a float64 a candidate in [0, 1]; it is a fresh array that the caller may change."""


class Picker(Plugin):
    """Chooses among scored candidates."""

    __slots__ = ()

    @abstractmethod
    def pick(self, candidates: Candidates, scores: Floats, rng: RandomSource) -> Rows:
        """Return positions in `scores`, best first: the primary, then its fallbacks; at least one."""


class SaturationDetector(Plugin):
    """Measures how full endpoints are."""

    __slots__ = ()

    @abstractmethod
    def saturation(self, rows: Rows, table: EndpointTable, now: float) -> float:
        """Return load over capacity; from 1.0 on the rows are saturated."""


class MayWait(Plugin):
    """A producer that returns holds. flowcontrol/waiting.py lists how a hold ends."""

    __slots__ = ()

    @abstractmethod
    def advance(self, now: float) -> tuple[Iterable[Hold], float | None]:
        """Return the holds released at `now`, and when to be asked next; None: by `Pool.wake` only."""


class Follower(Plugin):
    """A plugin that follows decisions to their end. What it does not override is not called."""

    __slots__ = ()

    def decided(self, request: InferenceRequest, candidates: Candidates, reservation: Reservation) -> None:
        """Note a decision, once for each reservation, with the candidates of the profile that made it."""

    def first_byte(self, decision: Decision, record: Record) -> None:
        """Note the first byte of the response body."""

    def ended(self, decision: Decision, record: Record) -> None:
        """Note the end of a request that was decided on; its reservations are released already."""
