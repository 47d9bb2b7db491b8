"""The contracts of scheduling plugins. A plugin is a class found by its type string; it does no I/O.

A plugin's base classes are its stages: `Screener`, `Admitter`, `Filter`, `Producer`, `Scorer`, `Picker`,
`LateAdmitter`, `SaturationDetector`, `ProfileHandler` (profile_handler.py). A producer that makes decisions
wait is also a `MayWait`; a plugin that is called on a decision, on its response and at its end is also a
`Follower`.
Stages run for every request: they allocate nothing per endpoint, log nothing and never raise.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from endpoint_picker.datalayer.kv_index import KvIndex
from endpoint_picker.datalayer.kv_sources import KvEventsPlan, KvSources
from endpoint_picker.datalayer.ledger import Ledger
from endpoint_picker.datalayer.media_index import MediaIndex
from endpoint_picker.datalayer.prefix_index import PrefixIndex
from endpoint_picker.datalayer.stage_counts import StageCounts
from endpoint_picker.datalayer.table import EndpointTable, Floats, Rows
from endpoint_picker.datalayer.tokenizing import TokenizePlan, Tokenizing
from endpoint_picker.decision import Decision, Refusal, Reservation
from endpoint_picker.latency.desk import Desk
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
    """The parameters of a plugin that has none."""


class RandomSource(Protocol):
    """The part of numpy.random.Generator that pickers use."""

    def random(self, size: int) -> Floats:
        """Return `size` floats in [0, 1)."""
        ...


class PrefixConsumerParams(PluginParams):
    """Base of the parameters of plugins that read the prefix match."""

    prefix_match_info_producer_name: str | None = Field(default=None, max_length=253)
    """Producer of the match, where several are listed; all plugins must name the same."""


class OutputEstimate:
    """The expected length of an answer, in tokens."""

    __slots__ = ("_most", "_ratio")

    def __init__(self, ratio: float, most: int | None) -> None:
        """`ratio` tokens for each token of the prompt, at most `most`; None is no limit."""
        self._ratio = ratio
        self._most = most

    def of(self, prompt_tokens: int, max_tokens: int) -> int:
        """Return the tokens expected of a request; `max_tokens` is its own limit, 0 is none."""
        expected = round(prompt_tokens * self._ratio)
        if max_tokens:
            expected = min(expected, max_tokens)
        return expected if self._most is None else min(expected, self._most)


class Pool:
    """State that plugins share and that outlives a configuration. table.py names the writers of columns."""

    __slots__ = (
        "clock",
        "desk",
        "index",
        "kv",
        "kv_plan",
        "kv_sources",
        "ledger",
        "media",
        "output",
        "progress",
        "rng",
        "stages",
        "table",
        "token_plan",
        "tokenizing",
        "wake",
    )

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self.table = EndpointTable()
        self.ledger = Ledger(self.table)
        self.progress = self.ledger.progress
        self.index = PrefixIndex(self.table)
        self.output: OutputEstimate | None = None
        """The expected length of answers, if the ledger is to count them."""
        self.kv = KvIndex()
        self.kv_sources = KvSources(self.table, self.kv)
        self.kv_plan: KvEventsPlan | None = None
        """Where KV events come from, as the configuration in use wants them; written by `attach`."""
        self.tokenizing = Tokenizing(self._woken)
        self.token_plan: TokenizePlan | None = None
        """Who is asked for the tokens of prompts; written by `attach`."""
        self.media = MediaIndex(self.table)
        self.stages = StageCounts()
        """Written by handlers of several stages."""
        self.clock = clock
        """Monotonic, in seconds."""
        self.rng: RandomSource
        """Set by the scheduler before it attaches a plugin."""
        self.wake: Callable[[], None] = lambda: None
        """Requests a call of every `MayWait.advance`, for a plugin that releases holds on an event."""
        self.desk = Desk(self.table, clock)
        """Latency prediction; it does nothing before a plugin uses it."""
        self.desk.wake = self._wake_waiters

    def _wake_waiters(self) -> None:
        self.wake()

    def _woken(self) -> None:
        self.wake()


class Plugin(ABC):
    """Base of every plugin class: its type string, its parameter model, its constructor."""

    __slots__ = ()

    type_name: ClassVar[str]
    """Name in the configuration; equal to the name of its entry point."""
    params_type: ClassVar[type[PluginParams]] = NoParams
    consumes: ClassVar[frozenset[str]] = frozenset()
    """Names of the producers' outputs that the plugin reads from the candidates."""
    reads_adapters: ClassVar[bool] = False
    """The plugin reads `EndpointTable.adapters`; without such a plugin no page is searched for adapters."""

    reads_prompt: ClassVar[bool] = False
    """The plugin reads `InferenceRequest.prompt`; without such a plugin no prompt is laid out."""
    chooses_peer: ClassVar[bool] = False
    """It is a profile handler that writes `Candidates.peer` for some profile."""

    @property
    def endpoint_attributes(self) -> frozenset[str]:
        """Return the names of the endpoint attributes that it writes, under its own name."""
        return frozenset()

    @property
    def request_attributes(self) -> frozenset[str]:
        """Return the names of the request attributes that it reads."""
        return frozenset()

    @property
    def inputs(self) -> frozenset[str]:
        """Return the names of the outputs that this instance reads: `consumes`, unless parameters say so."""
        return self.consumes

    def __init__(self, params: Any) -> None:  # noqa: B027 - most plugins override it, none must
        """Take the validated parameters, an instance of `params_type`."""

    def fault_among(self, plugins: "Mapping[str, Plugin]", profiles: Sequence[str]) -> str:
        """Return why the plugin cannot work in its configuration; "" when it can.

        `plugins` are all listed ones by name and those that the configuration adds, `profiles` the names.
        """
        return ""

    def attach(self, pool: Pool) -> None:  # noqa: B027 - few plugins need it
        """Take what the plugin needs of the pool; called when its configuration comes into use.

        Called again when a newer configuration could not be attached and this one returns.
        """


class RequestReader(Plugin):
    """Reads a fact of the request before any other stage, for the stages after it."""

    __slots__ = ()

    writes: ClassVar[str]
    """Name of the request attribute that it writes."""

    @abstractmethod
    def read(self, request: InferenceRequest) -> None:
        """Write the attribute into `request.attributes`, if the request has it."""


class Filter(Plugin):
    """Narrows the candidates. It runs again when the decision is made anew after a wait.

    A filter with `consumes` runs after the producers, and so do the filters listed after it.
    """

    __slots__ = ()

    @abstractmethod
    def filter(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Rows:
        """Return the candidates' rows that stay, in the order given; the array may be empty.

        Neither filter nor caller changes the array afterwards.
        """


class Producer(Plugin):
    """Computes facts about the candidates that the filters left, for the stages after it."""

    __slots__ = ()

    produces: ClassVar[frozenset[str]]
    """Names of the outputs that it writes into the candidates or the request."""
    attaches_when_idle: ClassVar[bool] = True
    """Its `attach` is called even if no profile consumes what it makes."""

    @abstractmethod
    def produce(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Hold | None:
        """Write its outputs into the candidates; a `MayWait` may return a hold instead.

        After a wait the decision is made anew from its filters on, because endpoints may have changed.
        `candidates.held` is then the released hold.
        """


class Scorer(Plugin):
    """Scores each candidate."""

    __slots__ = ()

    bounded: ClassVar[bool] = False
    """True when `score` returns [0, 1] without NaN; the scores of other classes are clamped."""

    @abstractmethod
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        """Return one float64 in [0, 1] for each candidate, in a fresh array that the caller may change."""


class Picker(Plugin):
    """Chooses among scored candidates."""

    __slots__ = ()

    @abstractmethod
    def pick(self, candidates: Candidates, scores: Floats, rng: RandomSource) -> Rows:
        """Return positions in `scores`, best first: the primary, then its fallbacks; at least one."""


class Screener(Plugin):
    """Narrows the endpoints before any profile runs. An endpoint stays when every screener keeps it."""

    __slots__ = ()

    @abstractmethod
    def screen(self, request: InferenceRequest, rows: Rows, table: EndpointTable) -> Rows:
        """Return the rows that stay, in the order given; every screener gets the same rows."""


class Admitter(Plugin):
    """Refuses requests before any profile runs."""

    __slots__ = ()

    @abstractmethod
    def refusal(
        self, request: InferenceRequest, rows: Rows, table: EndpointTable, now: float
    ) -> Refusal | None:
        """Return why the request is refused, None to admit it. Refusals are shared objects."""


class LateAdmitter(Plugin):
    """Refuses requests after the primary profile ran, by what its producers found."""

    __slots__ = ()

    @abstractmethod
    def refusal(
        self, request: InferenceRequest, candidates: Candidates, table: EndpointTable
    ) -> Refusal | None:
        """Return why the request is refused, None to admit it. Refusals are shared objects."""


class SaturationDetector(Plugin):
    """Measures the load of endpoints against their capacity."""

    __slots__ = ()

    reads_metrics: ClassVar[bool] = False
    """An endpoint whose metrics are older than `max_age_s` counts 1.0 in the mean over the endpoints."""

    @property
    def max_age_s(self) -> float:
        """Return the age, in seconds, from which metrics are too old; infinite when none are read."""
        return math.inf

    def step(self, endpoints: int) -> float:
        """Return the most by which one more request raises the load of so many endpoints.

        Infinite when that is not known: flow control then computes the saturation for every request.
        """
        return math.inf

    @abstractmethod
    def saturation(self, rows: Rows, table: EndpointTable, now: float) -> float:
        """Return load over capacity; from 1.0 on the rows are saturated."""


class MayWait(Plugin):
    """A producer that returns holds. flowcontrol/waiting.py lists the ends of a hold."""

    __slots__ = ()

    @abstractmethod
    def advance(self, now: float) -> tuple[Iterable[Hold], float | None]:
        """Return the holds released at `now`, and when to call again; None: only after `Pool.wake`."""


class Follower(Plugin):
    """A plugin that is called at points of a request. Methods not overridden cost nothing."""

    __slots__ = ()

    follows_when_idle: ClassVar[bool] = False
    """It is called also as a producer of which nothing consumes an output."""

    def decided(self, request: InferenceRequest, candidates: Candidates, reservation: Reservation) -> None:
        """Note a decision, once for each reservation, with the candidates of the profile that made it."""

    def first_byte(self, decision: Decision, record: Record) -> None:
        """Note the first token of the response, or the first byte of one that is no stream."""

    def response_headers(self, decision: Decision, record: Record) -> Iterable[tuple[str, str]]:
        """Return (name, value) of the headers to set on the response; names are in lower case.

        Of `record`, `response_status` and `served_by` are set by now.
        """
        return ()

    def response_complete(self, decision: Decision, record: Record) -> Iterable[tuple[str, str, float]]:
        """Return (namespace, key, number) of dynamic metadata for the proxy, when the response is complete.

        `record.usage` is set by now. Not called for a request that ends early.
        """
        return ()

    def ended(self, decision: Decision, record: Record) -> None:
        """Note the end of a request that was decided on; its reservations are released already."""
