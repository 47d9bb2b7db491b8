"""request-attribute-reporter: gives the proxy a number about each response, such as a request's cost."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field, model_validator
from typing_extensions import override

from endpoint_picker.decision import Decision
from endpoint_picker.record import Record
from endpoint_picker.scheduling.plugin import Follower, PluginParams
from endpoint_picker.scheduling.reporters.expression import EvaluationError, expression_of
from inference_api.names import LB_NAMESPACE


class AttributeKey(PluginParams):
    """Place of the number in the dynamic metadata."""

    namespace: str = Field(default=LB_NAMESPACE, min_length=1, max_length=253)
    """Namespace of the metadata."""
    name: str = Field(min_length=1, max_length=253)
    """Key in the namespace."""


class Attribute(PluginParams):
    """One number."""

    key: AttributeKey
    """Place of the number in the dynamic metadata."""
    expression: str
    """CEL over `usage` that gives a whole number: "usage.prompt_tokens + 3 * usage.completion_tokens"."""
    condition: str = ""
    """CEL over `usage` that gives true or false: the number is reported where it is true. "" is true."""

    @model_validator(mode="after")
    def _can_be_read(self) -> "Attribute":
        expression_of(self.expression, int)
        if self.condition:
            expression_of(self.condition, bool)
        return self


class ReporterParams(PluginParams):
    """Parameters of request-attribute-reporter."""

    attributes: Annotated[tuple[Attribute, ...], Field(min_length=1, max_length=1)]
    """The number; exactly one. A second number takes a second instance of the plugin."""


class RequestAttributeReporter(Follower):
    """Writes one number into the response's dynamic metadata, once its usage is known.

    Nothing is written for 0, for a response without usage, and where the expression has no value. Expressions
    know whole numbers, true, false, `has()`, `+ - * / %`, comparisons, `! && ||`, `a ? b : c` and the fields
    prompt_tokens, completion_tokens, total_tokens and prompt_tokens_details.cached_tokens of `usage`.
    """

    __slots__ = ("_condition", "_expression", "_key")
    type_name = "request-attribute-reporter"
    params_type = ReporterParams

    def __init__(self, params: ReporterParams) -> None:
        (attribute,) = params.attributes
        self._key = attribute.key.namespace, attribute.key.name
        self._expression = expression_of(attribute.expression, int).value
        self._condition = expression_of(attribute.condition or "true", bool).value

    @override
    def response_complete(self, decision: Decision, record: Record) -> Iterable[tuple[str, str, float]]:
        """Return the number."""
        usage = record.usage
        if usage is None:
            return ()
        try:
            number = self._expression(usage) if self._condition(usage) else 0
        except EvaluationError:
            return ()
        return ((*self._key, float(number)),) if number else ()
