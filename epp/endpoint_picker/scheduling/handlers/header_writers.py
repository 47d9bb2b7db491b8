"""disagg-headers-handler, prefill-header-handler: deprecated plugins whose work the profile handler does."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field
from typing_extensions import override

from endpoint_picker.scheduling.plugin import Plugin, PluginParams
from endpoint_picker.scheduling.profile_handler import ProfileHandler
from endpoint_picker.scheduling.roles import ENCODE, PREFILL


class PrefillHeaderParams(PluginParams):
    """Parameters of prefill-header-handler."""

    prefill_profile: str = Field(default=PREFILL, min_length=1)
    """Profile of the prefill stage; refused when it is not the profile handler's."""


class DisaggHeadersParams(PrefillHeaderParams):
    """Parameters of disagg-headers-handler."""

    encode_profile: str = Field(default=ENCODE, min_length=1)
    """Profile of the encode stage; refused when it is not the profile handler's."""


class PrefillHeaderHandler(Plugin):
    """Does nothing: the profile handler writes x-prefiller-host-port. Deprecated: remove it."""

    __slots__ = ("_profiles",)
    type_name = "prefill-header-handler"
    params_type: ClassVar[type[PluginParams]] = PrefillHeaderParams

    def __init__(self, params: PrefillHeaderParams) -> None:
        self._profiles = {PREFILL: params.prefill_profile}

    @override
    def fault_among(self, plugins: Mapping[str, Plugin], profiles: Sequence[str]) -> str:
        """Demand a handler that writes the headers, and for the same profiles."""
        handler = next((each for each in plugins.values() if isinstance(each, ProfileHandler)), None)
        if handler is None or not handler.chooses_peer:
            return "the headers are written by disagg-profile-handler, which this configuration lacks"
        for stage, profile in self._profiles.items():
            if profile in profiles and handler.stage_of(profile) != stage:
                return f'profile "{profile}" is not that of the {stage} stage of {handler.type_name}'
            if profile != stage and profile not in profiles:
                return f'there is no profile "{profile}"'
        return ""


class DisaggHeadersHandler(PrefillHeaderHandler):
    """Does nothing: the profile handler writes the headers of its stages. Deprecated: remove it."""

    __slots__ = ()
    type_name = "disagg-headers-handler"
    params_type = DisaggHeadersParams

    def __init__(self, params: DisaggHeadersParams) -> None:
        super().__init__(params)
        self._profiles[ENCODE] = params.encode_profile
