"""Equality-based label selectors, as InferencePools and Services have them. Pure."""

from collections.abc import Mapping


def selector_query(labels: Mapping[str, str]) -> str:
    """Return the selector as the API takes it in `labelSelector`; equal selectors give equal texts."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Return whether an object with these labels has every label of the selector; an empty one takes all."""
    return all(labels.get(key) == value for key, value in selector.items())
