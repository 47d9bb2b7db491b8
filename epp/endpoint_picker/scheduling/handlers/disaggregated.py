"""disagg-profile-handler, pd-profile-handler: prefill and encode stages on other servers than decode."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

from pydantic import Field, model_validator
from typing_extensions import override

from endpoint_picker.datalayer.contact import Contact
from endpoint_picker.datalayer.stage_counts import StageCounts
from endpoint_picker.datalayer.table import EndpointTable, Rows
from endpoint_picker.decision import Decision
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import NO_PEER, Candidates
from endpoint_picker.scheduling.decider import Decider
from endpoint_picker.scheduling.hold import Hold
from endpoint_picker.scheduling.plugin import Follower, Plugin, PluginParams, Pool, RandomSource
from endpoint_picker.scheduling.profile import Profile
from endpoint_picker.scheduling.profile_handler import ProfileHandler
from endpoint_picker.scheduling.roles import DECODE, ENCODE, PREFILL

#: Header with the address ("ip:port") of the server that computes the prompt.
PREFILL_HEADER: Final = "x-prefiller-host-port"
#: Header with the addresses of the servers that encode images, video and audio, comma-separated.
ENCODE_HEADER: Final = "x-encoder-hosts-ports"

_ORDER: Final = (ENCODE, PREFILL, DECODE)
_DECODE_FIRST: Final = "decode-first"
_PREFILL_FIRST: Final = "prefill-first"


class StageProfiles(PluginParams):
    """The profile of each stage."""

    decode: str = Field(default=DECODE, min_length=1)
    """Profile of the stage that answers."""
    prefill: str = Field(default=PREFILL, min_length=1)
    """Profile of the stage that computes prompts."""
    encode: str = Field(default=ENCODE, min_length=1)
    """Profile of the stage that encodes images, video and audio."""

    @model_validator(mode="after")
    def _differ(self) -> "StageProfiles":
        if len({self.decode, self.prefill, self.encode}) < len(_ORDER):
            raise ValueError("each stage needs a profile of its own")
        return self


class StageDeciders(PluginParams):
    """The decider of each optional stage."""

    prefill: str = ""
    """Name of the decider of the prefill stage; needed with a prefill profile, but in prefill-first."""
    encode: str = ""
    """Name of the decider of the encode stage; needed with an encode profile."""


class DisaggParams(PluginParams):
    """Parameters of disagg-profile-handler."""

    stage_order: Literal["decode-first", "prefill-first"] = _DECODE_FIRST
    """The stage whose server is chosen first: the other stages see it as their peer."""
    profiles: StageProfiles = StageProfiles()
    """Names of the stages' profiles."""
    deciders: StageDeciders = StageDeciders()
    """Names of the plugins that say whether an optional stage runs."""
    decode_profile: str | None = Field(default=None, min_length=1, deprecated="write profiles.decode")
    """Deprecated name of profiles.decode."""
    prefill_profile: str | None = Field(default=None, min_length=1, deprecated="write profiles.prefill")
    """Deprecated name of profiles.prefill."""
    encode_profile: str | None = Field(default=None, min_length=1, deprecated="write profiles.encode")
    """Deprecated name of profiles.encode."""
    prefill_decider_plugin_name: str | None = Field(default=None, deprecated="write deciders.prefill")
    """Deprecated name of deciders.prefill."""
    encode_decider_plugin_name: str | None = Field(default=None, deprecated="write deciders.encode")
    """Deprecated name of deciders.encode."""
    decider_plugin_name: str | None = Field(default=None, deprecated="write deciders.prefill")
    """Deprecated name of deciders.prefill."""

    @model_validator(mode="before")
    @classmethod
    def _take_the_old_names(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        for old, (group, key) in _OLD_NAMES.items():
            if values.get(old) is None:
                continue
            named = values.get(group) or {}
            if not isinstance(named, dict):
                return values  # its type is the fault to report
            if key in named:
                msg = f"{old} is a deprecated name of {group}.{key}, which is set as well; keep {group}.{key}"
                raise ValueError(msg)
            values = {**values, group: {**named, key: values[old]}}
        return values

    @model_validator(mode="after")
    def _has_no_decider_too_many(self) -> "DisaggParams":
        if self.stage_order == _PREFILL_FIRST and self.deciders.prefill:
            raise ValueError(
                "with stageOrder prefill-first every request has the prefill stage; remove its decider"
            )
        return self


_OLD_NAMES: Final = {
    "decodeProfile": ("profiles", DECODE),
    "prefillProfile": ("profiles", PREFILL),
    "encodeProfile": ("profiles", ENCODE),
    "prefillDeciderPluginName": ("deciders", PREFILL),
    "encodeDeciderPluginName": ("deciders", ENCODE),
    "deciderPluginName": ("deciders", PREFILL),
}


class _Stages(ProfileHandler, Follower):
    """What the handlers of disaggregated pools share: stages, headers, what is reserved, counts."""

    __slots__ = ("_deciders", "_decides", "_order", "_pool", "_stage_of")
    chooses_peer: ClassVar[bool] = True
    most_profiles: ClassVar[int] = len(_ORDER)

    def __init__(self, profiles: Mapping[str, str], deciders: Mapping[str, str], prefill_first: bool) -> None:
        """Take the profile of each stage, the decider's name of each optional stage, and the order."""
        self._stage_of = {profile: stage for stage, profile in profiles.items()}
        self._deciders = {stage: name for stage, name in deciders.items() if name}
        self._decides: dict[str, Decider] = {}
        self._order = (PREFILL, ENCODE, DECODE) if prefill_first else (DECODE, ENCODE, PREFILL)
        self._pool: Pool

    # Configuration.

    @override
    def attach(self, pool: Pool) -> None:
        """Take the counts."""
        self._pool = pool

    @override
    def fault_of(self, profiles: Sequence[str]) -> str:
        """Demand a decode profile, and for each optional one what makes it run."""
        names = {stage: profile for profile, stage in self._stage_of.items()}
        strange = [each for each in profiles if each not in self._stage_of]
        if strange:
            return f'profile "{strange[0]}" is of none of the stages {", ".join(names.values())}'
        if names[DECODE] not in profiles:
            return f'profile "{names[DECODE]}" is missing: it chooses the server that answers'
        for stage, profile in names.items():
            has_decider = stage in self._deciders
            needs = stage == ENCODE or (stage == PREFILL and self._order[0] != PREFILL)
            if profile in profiles and needs and not has_decider:
                return f'profile "{profile}" would never run: deciders.{stage} names no decider'
            if profile not in profiles and has_decider:
                return f'deciders.{stage} has nothing to decide: there is no profile "{profile}"'
        return ""

    @property
    @override
    def refers_to(self) -> Mapping[str, str]:
        """Return the names of the deciders."""
        return {f"deciders.{stage}": name for stage, name in self._deciders.items()}

    @override
    def take(self, parameter: str, plugin: Plugin) -> str:
        """Take a decider."""
        if not isinstance(plugin, Decider):
            return f'"{plugin.type_name}" is no decider'
        self._decides[parameter.removeprefix("deciders.")] = plugin
        return ""

    @override
    def readers_of(self, profile: str) -> Iterable[Plugin]:
        """Return the deciders, which read the decode stage's candidates after it ran."""
        if self._stage_of.get(profile) != DECODE or self._order[0] != DECODE:
            return ()
        return self._decides.values()

    @override
    def stage_of(self, profile: str) -> str:
        """Return the stage of a profile."""
        return self._stage_of.get(profile, "")

    # Decision.

    @override
    def schedule(
        self,
        request: InferenceRequest,
        candidates: Candidates,
        table: EndpointTable,
        rng: RandomSource,
        profiles: Sequence[Profile],
    ) -> Sequence[Candidates] | Hold:
        """Run the stages in their order. A failed decode stage fails the request, others are left out."""
        by_stage = {self._stage_of[each.name]: each for each in profiles}
        rows, held = candidates.rows, candidates.held
        peer, chain = NO_PEER, candidates.prefix_chain
        others: list[Candidates] = []
        for stage in self._order:
            profile = by_stage.get(stage)
            if profile is None or not self._wants(stage, request, candidates):
                continue
            one = candidates if stage == DECODE else Candidates(self._alive(rows, table), held)
            one.peer, one.prefix_chain = peer, chain
            hold = profile.run(request, one, table, rng) if one.rows.size else None
            if hold is not None:
                return hold
            chain = one.prefix_chain or chain
            if not one.order.size:
                if stage == DECODE:
                    return ()
                self._pool.stages.drop(self.type_name, stage)
                continue
            if stage != ENCODE:
                peer = int(one.rows[one.order[0]])
            if stage != DECODE:
                others.append(one)
        return (candidates, *self._apart(candidates, others))

    def _wants(self, stage: str, request: InferenceRequest, decode: Candidates) -> bool:
        decider = self._decides.get(stage)
        return decider is None or decider.wants(request, decode)

    def _alive(self, rows: Rows, table: EndpointTable) -> Rows:
        """Return the rows without servers that answered scrapes and no longer do: dead or hung ones.

        The decode server would wait for such a server, and can do its work itself.
        """
        lost = (table.contact[rows] >= Contact.SILENT) & (table.scraped_at[rows] > float("-inf"))
        kept: Rows = rows[~lost]
        return kept

    def _apart(self, decode: Candidates, others: Iterable[Candidates]) -> Iterable[Candidates]:
        """Return the stages that run on another server than decode: one server needs no transfer."""
        own = decode.rows[decode.order[0]]
        return [
            each
            for each in others
            if self._stage_of[each.profile] == ENCODE or each.rows[each.order[0]] != own
        ]

    @override
    def complete(
        self, decision: Decision, chosen: Sequence[Candidates], table: EndpointTable, prompt_tokens: int
    ) -> None:
        """Name the stages' servers in headers, and count each token where it is worked on.

        The prefill server has the prompt until the first byte; the decode server holds its keys and values
        until the end.
        """
        reservations = decision.reservations
        for each, reservation in zip(chosen[1:], reservations[1:], strict=True):
            if self._stage_of[each.profile] == PREFILL:
                decision.headers += ((PREFILL_HEADER, table.hostports[reservation.row]),)
                reservations[0].tokens = 0
                reservations[0].decode_tokens += prompt_tokens
            else:
                rows = each.rows[each.order].tolist()
                decision.headers += ((ENCODE_HEADER, ",".join([table.hostports[row] for row in rows])),)
                reservation.tokens = 0

    # Counts.

    @override
    def ended(self, decision: Decision, record: Record) -> None:
        """Count the decision under its type and its model."""
        stages = [self._stage_of.get(each.profile, "") for each in decision.reservations]
        counts: StageCounts = self._pool.stages
        proven = 0 < record.response_status < 400
        counts.count(self.type_name, record.model, decision_type(stages), proven=proven)


def decision_type(stages: Iterable[str]) -> str:
    """Return the type of a decision of these stages, such as "prefill-decode"; one of them is "decode"."""
    ran = set(stages)
    return "decode-only" if ran == {DECODE} else "-".join(each for each in _ORDER if each in ran)


class DisaggProfileHandler(_Stages):
    """Chooses a decode server, and a prefill and an encode server for the requests that need one.

    `decode-first` runs the decode profile, then those of encode and prefill whose decider says yes.
    `prefill-first` runs prefill, encode by its decider, then decode. The destination is the decode server;
    the headers x-prefiller-host-port and x-encoder-hosts-ports name the others to its sidecar. A prefill or
    encode stage without endpoint is left out, and so is a prefill stage on the decode server itself. Servers
    that answered scrapes and no longer do are not used for them.
    """

    __slots__ = ()
    type_name = "disagg-profile-handler"
    params_type = DisaggParams

    def __init__(self, params: DisaggParams) -> None:
        profiles = {DECODE: params.profiles.decode, PREFILL: params.profiles.prefill}
        super().__init__(
            {**profiles, ENCODE: params.profiles.encode},
            {PREFILL: params.deciders.prefill, ENCODE: params.deciders.encode},
            params.stage_order == _PREFILL_FIRST,
        )


class PdParams(PluginParams):
    """Parameters of pd-profile-handler."""

    decode_profile: str = Field(default=DECODE, min_length=1)
    """Profile of the stage that answers."""
    prefill_profile: str = Field(default=PREFILL, min_length=1)
    """Profile of the stage that computes prompts."""
    decider_plugin_name: str = ""
    """Name of the decider of the prefill stage."""
    primary_port: int = Field(default=0, ge=0, le=65535)
    """Port of the proxy in each decode pod that passes requests on to its ranks; 0: there is none."""

    @model_validator(mode="after")
    def _differ(self) -> "PdParams":
        if self.decode_profile == self.prefill_profile:
            raise ValueError("each stage needs a profile of its own")
        return self


class PdProfileHandler(_Stages):
    """Chooses a decode server, and a prefill server if the decider says yes. Deprecated.

    With primaryPort, x-data-parallel-host-port names the decode server and the destination is that port of
    its address, without fallbacks. Write disagg-profile-handler.
    """

    __slots__ = ("_port",)
    type_name = "pd-profile-handler"
    params_type = PdParams

    def __init__(self, params: PdParams) -> None:
        profiles = {DECODE: params.decode_profile, PREFILL: params.prefill_profile}
        super().__init__(profiles, {PREFILL: params.decider_plugin_name}, prefill_first=False)
        self._port = params.primary_port

    @override
    def schedule(
        self,
        request: InferenceRequest,
        candidates: Candidates,
        table: EndpointTable,
        rng: RandomSource,
        profiles: Sequence[Profile],
    ) -> Sequence[Candidates] | Hold:
        """Run the stages, and note the port that requests enter by."""
        chosen = super().schedule(request, candidates, table, rng, profiles)
        if self._port and candidates.order.size:
            candidates.order = candidates.order[:1]
            candidates.entry_port = self._port
        return chosen
