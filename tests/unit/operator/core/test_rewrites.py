"""How InferenceModelRewrites become the picker's rules."""

from datetime import UTC, datetime
from typing import Any

from inference_api.inference_model_rewrite import InferenceModelRewrite
from inference_operator.core.rewrites import by_age, compiled, hidden_names, is_partly_weighted


def rewrite(name: str, *rules: dict[str, Any], second: int = 0, **metadata: Any) -> InferenceModelRewrite:
    created = datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC).isoformat()
    return InferenceModelRewrite.model_validate(
        {
            "metadata": {"name": name, "generation": 3, "creationTimestamp": created, **metadata},
            "spec": {"poolRef": {"name": "p"}, "rules": list(rules)},
        }
    )


def rule(*models: str, **targets: int | None) -> dict[str, Any]:
    return {
        "matches": [{"model": {"value": model}} for model in models],
        "targets": [
            {"modelRewrite": name, **({"weight": each} if each else {})} for name, each in targets.items()
        ],
    }


def shown(*rewrites: InferenceModelRewrite) -> list[tuple[Any, ...]]:
    return [
        (each.source, each.models, {target.model: target.weight for target in each.targets})
        for each in compiled(by_age(rewrites))
    ]


def test_the_oldest_rewrite_comes_first_then_the_name_and_rules_keep_their_order() -> None:
    assert shown(
        rewrite("young", rule("a", x=None), second=9),
        rewrite("b", rule("a", y=None), rule(z=None)),
        rewrite("a", rule("a", "b", w=None)),
    ) == [
        ("a", ("a", "b"), {"w": 1}),
        ("b", ("a",), {"y": 1}),
        ("b", (), {"z": 1}),
        ("young", ("a",), {"x": 1}),
    ]


def test_weights_are_all_or_those_without_get_nothing() -> None:
    mixed = rewrite("r", rule("m", x=70, y=None, z=30))
    assert shown(mixed) == [("r", ("m",), {"x": 70, "z": 30})]
    assert is_partly_weighted(mixed)
    assert not is_partly_weighted(rewrite("r", rule("m", x=1, y=2), rule("n", x=None, y=None)))


def test_what_is_deleted_or_cannot_be_written_is_left_out() -> None:
    assert shown(rewrite("gone", rule("m", x=None), deletionTimestamp="2026-01-01T00:00:00Z")) == []
    assert shown(rewrite("r", {"targets": [{"modelRewrite": ""}, {"modelRewrite": "x" * 2000}]})) == []
    assert shown(InferenceModelRewrite.model_validate({"metadata": {"name": "empty"}})) == []


def test_a_rewrite_whose_models_an_older_one_takes_is_told() -> None:
    old, young = (
        rewrite("old", rule("a", x=None), rule(y=None)),
        rewrite("young", rule("a", "b", z=None), rule(z=None)),
    )
    assert hidden_names(young, (old, young)) == ("*", "a")
    assert hidden_names(old, (old, young)) == ()
