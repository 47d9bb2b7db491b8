"""InferenceModelRewrite v1alpha2: replaces the model name of a request."""

from typing import Annotated

from pydantic import Field

from inference_api.inference_objective import ACCEPTED, PoolRef, pending_condition
from inference_api.markers import SERVER_DEFAULTED, Schema, list_of, server_default
from inference_api.meta import ApiType, Condition, ObjectMeta

EXACT = "Exact"


class ModelMatch(ApiType):
    """How the model field of a request body is compared."""

    type: Annotated[str, Schema(enum=[EXACT]), SERVER_DEFAULTED] = EXACT
    """Kind of comparison."""
    value: Annotated[str, Schema(minLength=1)]
    """Model name to compare with."""


class Match(ApiType):
    """A condition under which a rule applies."""

    model: ModelMatch
    """The request's model."""


class TargetModel(ApiType):
    """A model that requests are sent to, and its share of them."""

    model_rewrite: str
    """Name written into the request's model field."""
    weight: Annotated[int, Schema(format="int32", minimum=1, maximum=1_000_000)] | None = None
    """Share in proportion to the sum of weights; all targets of a rule have one, or none has."""


class RewriteRule(ApiType):
    """The target models of the requests that match."""

    matches: tuple[Match, ...] = ()
    """The rule applies to requests that match one of these; to every request when the list is empty."""
    targets: Annotated[tuple[TargetModel, ...], Schema(minItems=1)] = ()
    """Models to choose from, at random by weight."""


class InferenceModelRewriteSpec(ApiType):
    """Rules for the requests of one pool."""

    pool_ref: PoolRef
    """The pool that the rules are for."""
    rules: tuple[RewriteRule, ...]
    """In order; an exact match wins over a rule for everything."""


class InferenceModelRewriteStatus(ApiType):
    """Whether the rules are in use."""

    conditions: Annotated[
        tuple[Condition, ...],
        list_of("map", "type", maxItems=8),
        server_default(pending_condition(ACCEPTED)),
    ] = ()
    """Accepted says whether a picker uses the rules."""


class InferenceModelRewrite(ApiType):
    """Aliases and traffic splits of model names."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    # Upstream's schema does not require spec; one without it does nothing.
    spec: InferenceModelRewriteSpec | None = None
    """Desired state, set by the user."""
    status: InferenceModelRewriteStatus | None = None
    """Observed state, written by controllers."""
