"""What the API types say of a container: its image, and its resources with their quantities."""

from typing import Annotated, Final

from pydantic import ConfigDict

from inference_api.markers import Schema, rules
from inference_api.meta import ApiType

Image = Annotated[str, Schema(minLength=1, maxLength=1024, pattern=r"^\S+$")]
Quantity = Annotated[
    int | str,
    Schema(
        anyOf=[{"type": "integer"}, {"type": "string"}],
        maxLength=32,
        pattern=r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
        **{"x-kubernetes-int-or-string": True},
    ),
]


_REQUESTS_WITHIN_LIMITS: Final = (
    "!has(self.limits) || !has(self.requests) || self.requests.all(name, !(name in self.limits) || "
    "quantity(string(self.requests[name])).compareTo(quantity(string(self.limits[name]))) <= 0)"
)


class ResourceRequirements(ApiType):
    """Compute resources of a container, as in a pod: names such as cpu and memory to quantities."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": rules(
                (
                    _REQUESTS_WITHIN_LIMITS,
                    "a request must not be greater than the limit of the same name",
                )
            )
        }
    )

    limits: Annotated[dict[str, Quantity], Schema(maxProperties=8)] | None = None
    """Upper limits of what the container may use."""
    requests: Annotated[dict[str, Quantity], Schema(maxProperties=8)] | None = None
    """What the scheduler reserves for the container."""
