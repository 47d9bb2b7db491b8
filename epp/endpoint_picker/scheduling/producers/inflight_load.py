"""inflight-load-producer: what the ledger counts as a request's tokens. The ledger itself is always on."""

from pydantic import Field, model_validator
from typing_extensions import override

from endpoint_picker.scheduling.plugin import OutputEstimate, Plugin, PluginParams, Pool


class InflightLoadParams(PluginParams):
    """Parameters of inflight-load-producer."""

    add_estimated_output_tokens: bool = False
    """True counts the expected answer, too, from the decision to the end of the request."""
    output_ratio: float = Field(default=1.5, ge=0.0)
    """Tokens of the answer that are expected for each token of the prompt."""
    max_estimated_output_tokens: int | None = Field(default=None, ge=0)
    """Most tokens that are expected of an answer; the request's own limit holds as well."""

    @model_validator(mode="after")
    def _acts(self) -> "InflightLoadParams":
        if not self.add_estimated_output_tokens:
            for name in ("output_ratio", "max_estimated_output_tokens"):
                if name in self.model_fields_set:
                    alias = type(self).model_fields[name].alias
                    msg = f"{alias} needs addEstimatedOutputTokens: true"
                    raise ValueError(msg)
        return self


class InflightLoadProducer(Plugin):
    """Adds expected answers to the tokens in flight: min(round(prompt * outputRatio), limits).

    The limits are maxEstimatedOutputTokens and the request's max_tokens (max_completion_tokens,
    max_output_tokens). The prompt's tokens are given back with the first byte, the answer's at the end.
    """

    __slots__ = ("_estimate", "adds_output")
    type_name = "inflight-load-producer"
    params_type = InflightLoadParams

    def __init__(self, params: InflightLoadParams) -> None:
        self.adds_output = params.add_estimated_output_tokens
        self._estimate = OutputEstimate(params.output_ratio, params.max_estimated_output_tokens)

    @override
    def attach(self, pool: Pool) -> None:
        """Have expected answers counted, or not."""
        pool.output = self._estimate if self.adds_output else None
