"""Compiles InferenceModelRewrites into the rules that the picker uses, and judges them. Pure."""

from collections.abc import Iterable
from typing import Final

from inference_api.inference_model_rewrite import InferenceModelRewrite, RewriteRule
from inference_api.priority_table import RewriteEntry, RewriteTarget

#: Longest name of a model that the picker writes and compares, in characters.
_MAX_NAME: Final = 1024
#: Most rules of one pool; the ConfigMap has to hold them.
MAX_RULES: Final = 2000


def by_age(rewrites: Iterable[InferenceModelRewrite]) -> tuple[InferenceModelRewrite, ...]:
    """Return the rewrites oldest first, those of one second by name."""
    return tuple(sorted(rewrites, key=lambda each: (each.metadata.creation_timestamp, each.metadata.name)))


def compiled(rewrites: Iterable[InferenceModelRewrite]) -> tuple[RewriteEntry, ...]:
    """Return the rules of the rewrites that are not being deleted, in order of precedence.

    Within a rule whose targets have weights in part, those without one get no requests. A rule without a
    usable target is left out.
    """
    entries = []
    for rewrite in rewrites:
        if rewrite.spec is None or rewrite.metadata.deletion_timestamp is not None:
            continue
        for rule in rewrite.spec.rules:
            targets = _targets(rule)
            if targets:
                entries.append(
                    RewriteEntry(
                        models=tuple(dict.fromkeys(match.model.value for match in rule.matches)),
                        targets=targets,
                        source=rewrite.metadata.name,
                        generation=rewrite.metadata.generation,
                    )
                )
    return tuple(entries[:MAX_RULES])


def _targets(rule: RewriteRule) -> tuple[RewriteTarget, ...]:
    usable = [each for each in rule.targets if 0 < len(each.model_rewrite) <= _MAX_NAME]
    weighted = any(each.weight for each in usable)
    return tuple(
        RewriteTarget(model=each.model_rewrite, weight=each.weight or 1)
        for each in usable
        if each.weight or not weighted
    )


def hidden_names(rewrite: InferenceModelRewrite, others: Iterable[InferenceModelRewrite]) -> tuple[str, ...]:
    """Return the models whose rule in an older rewrite comes first, sorted; "*" stands for every model."""
    older: set[str] = set()
    for each in others:
        if each.metadata.name == rewrite.metadata.name:
            break
        older |= _names(each)
    return tuple(sorted(_names(rewrite) & older))


def is_partly_weighted(rewrite: InferenceModelRewrite) -> bool:
    """Tell whether a rule has targets with a weight and targets without."""
    rules = rewrite.spec.rules if rewrite.spec else ()
    return any(len({bool(target.weight) for target in rule.targets}) > 1 for rule in rules)


def _names(rewrite: InferenceModelRewrite) -> set[str]:
    if rewrite.spec is None or rewrite.metadata.deletion_timestamp is not None:
        return set()
    return {
        match.model.value if match else "*"
        for rule in rewrite.spec.rules
        for match in (rule.matches or (None,))
    }
