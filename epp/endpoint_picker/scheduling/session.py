"""The endpoint that a session is bound to: shared by the session-affinity plugins. Pure.

A client's token or session id can choose among the candidates only: the endpoint that it names is looked up
in the table, and counts if it is one of them.
"""

import base64
import binascii
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.decision import Decision, Reservation
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Follower, Plugin, PluginParams, Pool, RequestReader

#: Longest token and session id that are read, characters; Kubernetes names of 63 and 253 fit.
MAX_TOKEN: Final = 1024
MAX_SESSION: Final = 256
#: Sessions that one plugin remembers; the one used least recently is forgotten first.
MAX_SESSIONS: Final = 100_000
#: Sessions that one search forgets at most, in well under a millisecond; the next request goes on.
_SWEPT_AT_A_TIME: Final = 256

#: Request attribute with the id of the response or conversation that a request goes on with. A plugin that
#: goes by it also binds the id of each response to the endpoint that gave it.
RESPONSE_STATE: Final = "ResponseState"

HeaderName = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[!#-'*+.0-9A-Z^_`a-z|~-]+$")]


class EncodedEndpointHeaderConfig(PluginParams):
    """Of the strategy encoded_endpoint_header."""

    header: HeaderName = "x-session-token"
    """Header of response and request that carries the token, in any case."""


class SessionSource(PluginParams):
    """One place where the session is read."""

    header: HeaderName | None = None
    """Request header, in any case."""
    attribute: str | None = Field(default=None, min_length=1)
    """Request attribute, such as SessionID of session-id-producer."""
    producer: str | None = Field(default=None, min_length=1)
    """Name of the plugin that writes the attribute; the only one that does when absent."""

    @model_validator(mode="after")
    def _one_kind(self) -> "SessionSource":
        if (self.header is None) == (self.attribute is None):
            raise ValueError("give either header or attribute")
        if self.producer is not None and self.attribute is None:
            raise ValueError("producer belongs to attribute")
        return self


class SessionIdConfig(PluginParams):
    """Of the strategy session_id."""

    sources: tuple[SessionSource, ...] = Field(default=(SessionSource(header="x-session-id"),), max_length=16)
    """Where the session is read; the first source that is not empty counts."""
    eviction_ttl_seconds: float = Field(default=300.0, gt=0.0)
    """Seconds after its last request from which a session may be forgotten."""
    eviction_sweep_seconds: float = Field(default=10.0, gt=0.0)
    """Seconds between two searches for such sessions."""


class SessionAffinityParams(PluginParams):
    """Parameters of the session-affinity plugins."""

    strategy: Literal["encoded_endpoint_header", "session_id"] = "encoded_endpoint_header"
    """The client returns a token of the response, or the picker remembers the endpoint of each session id."""
    encoded_endpoint_header_config: EncodedEndpointHeaderConfig | None = None
    """For encoded_endpoint_header."""
    session_id_config: SessionIdConfig | None = None
    """For session_id."""
    profile_name: str = ""
    """Profile whose endpoint the session is bound to; the primary profile's when empty."""

    @model_validator(mode="after")
    def _fits_the_strategy(self) -> "SessionAffinityParams":
        if self.strategy == "session_id" and self.encoded_endpoint_header_config is not None:
            raise ValueError("encodedEndpointHeaderConfig does nothing with strategy session_id")
        if self.strategy != "session_id" and self.session_id_config is not None:
            raise ValueError("sessionIdConfig needs strategy session_id")
        return self


class SessionAffinity(Follower):
    """What both session-affinity plugins share: it binds sessions to endpoints and finds the bound one."""

    __slots__ = (
        "_binds_responses",
        "_clock",
        "_header",
        "_ids",
        "_profile",
        "_sessions",
        "_swept_at",
        "_table",
    )
    params_type = SessionAffinityParams

    def __init__(self, params: SessionAffinityParams) -> None:
        self._profile = params.profile_name
        self._ids = (
            (params.session_id_config or SessionIdConfig()) if params.strategy == "session_id" else None
        )
        sources = self._ids.sources if self._ids else ()
        self._binds_responses = any(each.attribute == RESPONSE_STATE for each in sources)
        encoded = params.encoded_endpoint_header_config or EncodedEndpointHeaderConfig()
        self._header = encoded.header.lower()
        self._sessions: OrderedDict[str, tuple[int, int, float]] = OrderedDict()
        """Session to the row, the generation and the time of its last decision; least recently used first."""
        self._swept_at = 0.0
        self._table: EndpointTable
        self._clock: Callable[[], float]

    @override
    def attach(self, pool: Pool) -> None:
        """Take the pool's table and clock."""
        self._table = pool.table
        self._clock = pool.clock

    @property
    @override
    def request_attributes(self) -> frozenset[str]:
        """Return the attributes among the sources of session ids."""
        sources = self._ids.sources if self._ids else ()
        return frozenset(each.attribute for each in sources if each.attribute is not None)

    @override
    def fault_among(self, plugins: Mapping[str, Plugin], profiles: Sequence[str]) -> str:
        """Return why the settings cannot work in the configuration; "" when they can."""
        if self._profile and self._profile not in profiles:
            return f'profileName is "{self._profile}", which is no profile; there are: {", ".join(profiles)}'
        for source in self._ids.sources if self._ids else ():
            if source.attribute is None:
                continue
            writers = [
                name
                for name, each in plugins.items()
                if isinstance(each, RequestReader) and each.writes == source.attribute
            ]
            if not writers:
                return f'no plugin writes the attribute "{source.attribute}"; add session-id-producer'
            if source.producer is not None and source.producer not in writers:
                return (
                    f'"{source.producer}" does not write "{source.attribute}"; it is {" or ".join(writers)}'
                )
        return ""

    def bound(self, request: InferenceRequest, candidates: Candidates) -> int | None:
        """Return the position among the candidates of the endpoint that the session is bound to."""
        row = self._row_of_token(request) if self._ids is None else self._row_of_session(request)
        if row is None:
            return None
        rows = candidates.rows
        at = int(rows.searchsorted(row))
        return at if at < rows.size and rows[at] == row else None

    @override
    def decided(self, request: InferenceRequest, candidates: Candidates, reservation: Reservation) -> None:
        """Bind the session to the endpoint."""
        if self._ids is None or not self._concerns(reservation):
            return
        session = self._session_of(request)
        if session:
            reservation.session = session
            self._bind(session, reservation)

    @override
    def first_byte(self, decision: Decision, record: Record) -> None:
        """Bind the session to the endpoint that answered, when it is another one than was picked."""
        if self._ids is None or not record.served_by or record.served_by == decision.endpoint:
            return
        for reservation in decision.reservations:
            if reservation.session and not reservation.released and self._concerns(reservation):
                self._bind(reservation.session, reservation)

    @override
    def response_headers(self, decision: Decision, record: Record) -> Iterable[tuple[str, str]]:
        """Return the token of the endpoint that served; none for an error of the server."""
        if self._ids is not None or record.response_status >= 500:
            return ()
        for reservation in decision.reservations:
            if self._concerns(reservation):
                row = self._served_row(decision, reservation, record)
                endpoint = None if row is None else self._table.endpoints[row]
                if endpoint is None:
                    return ()
                name = f"{endpoint.namespace}/{endpoint.name}"
                return ((self._header, base64.b64encode(name.encode()).decode("ascii")),)
        return ()

    @override
    def ended(self, decision: Decision, record: Record) -> None:
        """Bind the response to the endpoint that holds its state, for the request that goes on with it."""
        if not self._binds_responses or not record.response_id or record.response_status >= 400:
            return
        for reservation in decision.reservations:
            if self._concerns(reservation) and len(record.response_id) <= MAX_SESSION:
                self._bind(record.response_id, reservation)

    def _served_row(self, decision: Decision, reservation: Reservation, record: Record) -> int | None:
        first = decision.reservations[0]
        if reservation is first and record.served_by and record.served_by != decision.endpoint:
            return self._table.row_of(record.served_by)
        current = self._table.is_current(reservation.row, reservation.generation)
        return reservation.row if current else None

    def _concerns(self, reservation: Reservation) -> bool:
        return reservation.profile == self._profile if self._profile else reservation.is_primary

    def _row_of_token(self, request: InferenceRequest) -> int | None:
        token = request.headers.get(self._header, "")
        if not token or len(token) > MAX_TOKEN:
            return None
        try:
            name = base64.b64decode(token, validate=True).decode("ascii")
        except (binascii.Error, ValueError):
            return None
        namespace, slash, name = name.partition("/")
        return self._table.row_named(namespace, name) if slash else None

    def _row_of_session(self, request: InferenceRequest) -> int | None:
        self._sweep()
        session = self._session_of(request)
        known = self._sessions.get(session) if session else None
        if known is None:
            return None
        row, generation, _used = known
        return row if self._table.is_current(row, generation) else None

    def _session_of(self, request: InferenceRequest) -> str:
        assert self._ids is not None  # noqa: S101 - callers check the strategy
        for source in self._ids.sources:
            value = (
                request.attributes.get(source.attribute, "")
                if source.attribute is not None
                else request.headers.get((source.header or "").lower(), "")
            )
            if value:
                return value if len(value) <= MAX_SESSION else ""
        return ""

    def _bind(self, session: str, reservation: Reservation) -> None:
        self._sessions[session] = (reservation.row, reservation.generation, self._clock())
        self._sessions.move_to_end(session)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)

    def _sweep(self) -> None:
        """Forget the sessions whose time is over, if the last search is long enough ago."""
        assert self._ids is not None  # noqa: S101 - callers check the strategy
        now = self._clock()
        if now - self._swept_at < self._ids.eviction_sweep_seconds:
            return
        before = now - self._ids.eviction_ttl_seconds
        for _ in range(_SWEPT_AT_A_TIME):
            if not self._sessions or next(iter(self._sessions.values()))[2] >= before:
                self._swept_at = now
                return
            self._sessions.popitem(last=False)
