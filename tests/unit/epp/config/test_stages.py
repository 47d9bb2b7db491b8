"""What the plugins of a configuration need of each other, checked when it is built."""

from typing import Any

import pytest
from typing_extensions import override

from endpoint_picker.config.build import build
from endpoint_picker.config.picker_config import PickerConfig
from endpoint_picker.config.registry import Registry
from endpoint_picker.config_errors import ConfigError
from endpoint_picker.scheduling.candidates import PREFIX_MATCH, Candidates
from endpoint_picker.scheduling.plugin import Follower, Picker, Plugin, Producer, Scorer
from endpoint_picker.scheduling.producers.approx_prefix_cache import PrefixParams
from endpoint_picker.scheduling.profile_handler import ProfileHandler


class NeedsTtft(Scorer):
    """Consumes a prediction."""

    __slots__ = ()
    type_name = "needs-ttft"
    consumes = frozenset({"PredictedTtft"})

    @override
    def score(self, *_given: object) -> Any:
        raise AssertionError


class TtftPicker(Picker):
    """Consumes a prediction."""

    __slots__ = ()
    type_name = "ttft-picker"
    consumes = frozenset({"PredictedTtft"})

    @override
    def pick(self, *_given: object) -> Any:
        raise AssertionError


class Predicts(Producer, Follower):
    """Makes the prediction from the prefix match."""

    __slots__ = ()
    type_name = "predicts"
    produces = frozenset({"PredictedTtft"})
    consumes = frozenset({PREFIX_MATCH})

    @override
    def produce(self, *_given: object) -> None:
        raise AssertionError

    @override
    def first_byte(self, *_given: object) -> None:
        raise AssertionError


class InCircle(Producer):
    """Makes the prefix match from the prediction."""

    __slots__ = ()
    type_name = "in-circle"
    produces = frozenset({PREFIX_MATCH})
    consumes = frozenset({"PredictedTtft"})

    @override
    def produce(self, *_given: object) -> None:
        raise AssertionError


class TwoProfiles(ProfileHandler):
    """Runs up to two profiles."""

    __slots__ = ()
    type_name = "two-profiles"
    most_profiles = 2

    @override
    def schedule(self, *_given: object) -> list[Candidates]:
        raise AssertionError


KINDS: tuple[type[Plugin], ...] = (NeedsTtft, TtftPicker, Predicts, InCircle, TwoProfiles)


def built(text: str) -> PickerConfig:
    installed = Registry.installed()

    def loader(name: str) -> Any:
        return lambda: installed.find(name, "")

    own = {kind.type_name: (lambda kind=kind: kind) for kind in KINDS}
    return build(text, Registry({**{name: loader(name) for name in installed.types}, **own}))


def producers(config: PickerConfig) -> list[type]:
    return [type(getattr(each, "__self__", None)) for each in config.scheduling.profiles[0].producers]


def test_an_output_that_nothing_produces_is_a_fault_that_names_both() -> None:
    with pytest.raises(
        ConfigError, match='"fast" consumes PredictedTtft, which no plugin produces'
    ) as caught:
        built("plugins: [{type: queue-scorer}, {type: needs-ttft, name: fast}]")
    assert caught.value.path == "schedulingProfiles[0].plugins[1].pluginRef"


def test_the_picker_that_is_not_in_the_profile_is_checked_as_well() -> None:
    text = "plugins: [{type: ttft-picker}, {type: queue-scorer}]\n"
    text += "schedulingProfiles: [{name: d, plugins: [{pluginRef: queue-scorer}]}]"
    with pytest.raises(ConfigError, match='"ttft-picker" consumes PredictedTtft'):
        built(text)


def test_producers_run_after_what_they_consume_and_only_where_they_are_needed() -> None:
    config = built("plugins: [{type: needs-ttft}, {type: predicts}]")
    assert [kind.__name__ for kind in producers(config)] == ["ApproxPrefixCacheProducer", "Predicts"]
    assert len(config.scheduling.hooks.first_byte) == 2
    assert len(config.scheduling.decided) == 1
    idle = built("plugins: [{type: queue-scorer}, {type: predicts}]")
    assert producers(idle) == []
    assert idle.scheduling.hooks.first_byte == ()
    assert idle.scheduling.decided == ()


def test_producers_that_wait_for_each_other_are_a_fault() -> None:
    with pytest.raises(ConfigError, match="whose producer waits for"):
        built("plugins: [{type: needs-ttft}, {type: predicts}, {type: in-circle}]")


def test_the_first_producer_listed_counts() -> None:
    config = built(
        """
plugins:
- {type: approx-prefix-cache-producer, parameters: {blockSizeTokens: 128}}
- {type: approx-prefix-cache-producer, name: other, parameters: {blockSizeTokens: 256}}
- {type: prefix-cache-scorer}
"""
    )
    (attached,) = [each for each in config.scheduling.plugins if isinstance(each, Producer)]
    assert attached.params.block_size_tokens == 128  # type: ignore[attr-defined]


def test_a_handler_says_how_many_profiles_there_may_be() -> None:
    text = "plugins: [{type: two-profiles}, {type: queue-scorer}]\nschedulingProfiles: "
    two = "[{name: a, plugins: [{pluginRef: queue-scorer}]}, {name: b, plugins: []}%s]"
    assert [each.name for each in built(text + two % "").scheduling.profiles] == ["a", "b"]
    with pytest.raises(ConfigError, match="more than 2 profiles"):
        built(text + two % ", {name: c}")


@pytest.mark.parametrize("name", ["two-profiles", "approx-prefix-cache-producer"])
def test_only_filters_scorers_and_pickers_belong_in_a_profile(name: str) -> None:
    text = f"plugins: [{{type: {name}}}]\nschedulingProfiles: [{{name: d, plugins: [{{pluginRef: {name}}}]}}]"
    with pytest.raises(ConfigError, match="is no filter, scorer or picker"):
        built(text)


@pytest.mark.parametrize(
    ("parameters", "tokens"),
    [
        pytest.param({}, 131_072, id="as long as can be"),
        pytest.param({"maxPrefixTokensToMatch": 640}, 640, id="tokens"),
        pytest.param({"maxPrefixTokensToMatch": 0, "maxPrefixBlocksToMatch": 10}, 640, id="blocks"),
        pytest.param({"maxPrefixTokensToMatch": 0, "maxPrefixBlocksToMatch": 0}, 131_072, id="neither"),
    ],
)
def test_how_much_of_a_prompt_is_matched(parameters: dict[str, int], tokens: int) -> None:
    assert PrefixParams.model_validate(parameters).max_tokens == tokens
