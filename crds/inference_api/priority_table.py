"""The compiled table that the operator writes for a picker: priorities of objectives, and model rewrites.

It travels as JSON in the ConfigMap `<picker>-priorities` under `names.PRIORITIES_KEY`.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]


class ObjectiveEntry(BaseModel):
    """One InferenceObjective of the pool, as the picker needs it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    priority: Int32 = 0
    """Higher is served first; negative may be shed when the pool is saturated."""
    generation: int = Field(default=0, ge=0)
    """metadata.generation of the InferenceObjective that this entry was compiled from."""


class RewriteTarget(BaseModel):
    """A model that requests are sent to."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: Annotated[str, Field(min_length=1, max_length=1024)]
    """Name written into the request."""
    weight: int = Field(default=1, ge=1, le=1_000_000)
    """Share in proportion to the sum of the rule's weights."""


class RewriteEntry(BaseModel):
    """One rule of an InferenceModelRewrite."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    models: tuple[str, ...] = ()
    """Names that the rule is for; empty: every name."""
    targets: tuple[RewriteTarget, ...] = Field(min_length=1)
    source: str = ""
    """metadata.name of the InferenceModelRewrite."""
    generation: int = Field(default=0, ge=0)
    """metadata.generation of the InferenceModelRewrite that this entry was compiled from."""


class PriorityTable(BaseModel):
    """The objectives that point at a picker's pool, by name, and the rewrites in order of precedence.

    Equal inputs give equal JSON (`dump`): keys are sorted, so that an unchanged table causes no write.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: int = Field(default=1, ge=1)
    """Format of the table; a reader refuses a newer format than its own."""
    objectives: dict[str, ObjectiveEntry] = Field(default_factory=dict)
    """Keyed by the objective's metadata.name, which is what a request's objective header carries."""

    rewrites: tuple[RewriteEntry, ...] = ()
    """Rules for the names of models; the first that matches exactly counts, else the first for every name."""
    default_objective: str = ""
    """Objective of a request that names none and whose model has none; "" is none."""
    model_objectives: dict[str, str] = Field(default_factory=dict)
    """Objective of a request that names none, by the model or LoRA adapter that it asks for."""

    def dump(self) -> str:
        """Return canonical JSON: keys sorted, two spaces of indent, a newline at the end."""
        ordered = self.model_copy(
            update={
                "objectives": dict(sorted(self.objectives.items())),
                "model_objectives": dict(sorted(self.model_objectives.items())),
            }
        )
        return ordered.model_dump_json(indent=2) + "\n"
