"""prefix-based-pd-decider: prompts of which the decode server lacks much are computed by a prefill server."""

from pydantic import Field
from typing_extensions import override

from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import PREFIX_MATCH, Candidates
from endpoint_picker.scheduling.decider import Decider
from endpoint_picker.scheduling.plugin import PluginParams
from endpoint_picker.scheduling.prompt_size import prompt_tokens


class PrefixBasedPdParams(PluginParams):
    """Parameters of prefix-based-pd-decider."""

    non_cached_tokens: int = Field(default=0, ge=0)
    """Tokens that the decode server must lack of the prompt; 0 is never."""
    prompt_tokens: int = Field(default=0, ge=0)
    """Shortest prompt that goes to a prefill server, in tokens; 0 is any."""


class PrefixBasedPdDecider(Decider):
    """Yes when the prompt has promptTokens, and nonCachedTokens of it are not cached on the decode server."""

    __slots__ = ("_lacking", "_least")
    type_name = "prefix-based-pd-decider"
    params_type = PrefixBasedPdParams
    consumes = frozenset({PREFIX_MATCH})

    def __init__(self, params: PrefixBasedPdParams) -> None:
        self._lacking = params.non_cached_tokens
        self._least = params.prompt_tokens

    @override
    def wants(self, request: InferenceRequest, decode: Candidates) -> bool:
        """Compare what the chosen decode server lacks with the thresholds."""
        tokens = prompt_tokens(request)
        if not self._lacking or tokens < self._least:
            return False
        cached = 0
        if decode.order.size and decode.prompt_blocks:
            cached = int(decode.prefix_matched.item(decode.order.item(0))) * decode.block_tokens
        return tokens - cached >= self._lacking
