"""A Kubernetes LabelSelector as parameters of plugins. Pure."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from endpoint_picker.scheduling.plugin import PluginParams


class Requirement(PluginParams):
    """One entry of matchExpressions."""

    key: str = Field(min_length=1)
    """Label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """In, NotIn, Exists or DoesNotExist; NotIn is met by a pod without the label."""
    values: tuple[str, ...] = ()
    """Values for In and NotIn."""

    @model_validator(mode="after")
    def _has_what_its_operator_needs(self) -> "Requirement":
        if self.operator in ("In", "NotIn") and not self.values:
            msg = f"operator {self.operator} needs values"
            raise ValueError(msg)
        if self.operator in ("Exists", "DoesNotExist") and self.values:
            msg = f"operator {self.operator} takes no values"
            raise ValueError(msg)
        return self

    def is_met(self, labels: Mapping[str, str]) -> bool:
        """Tell whether the labels meet the requirement; NotIn is met by an absent label."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels


class LabelSelectorParams(PluginParams):
    """A Kubernetes LabelSelector; an empty one matches all."""

    match_labels: dict[str, str] = Field(default_factory=dict)
    """Labels with the value that each must have."""
    match_expressions: tuple[Requirement, ...] = ()
    """Further requirements; all have to be met."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether the labels meet every part of the selector."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.is_met(labels) for requirement in self.match_expressions
        )
