"""A study or comparison in words and as JSON. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pool_simulation.figures import MORE_IS_BETTER, Interval
from pool_simulation.study.profiles import OWN
from pool_simulation.study.search import MOST_LOAD
from pool_simulation.study.study import Comparison, Measured, Profile, Study, meets

#: Figures of the table: name, title, factor to the unit shown, unit.
SHOWN: Final = (
    ("goodput", "within SLOs", 100.0, "%"),
    ("served_per_s", "served", 1.0, "/s"),
    ("refused", "refused", 1.0, ""),
    ("failed", "failed", 1.0, ""),
    ("ttft_p50_s", "TTFT p50", 1000.0, "ms"),
    ("ttft_p90_s", "TTFT p90", 1000.0, "ms"),
    ("ttft_p99_s", "TTFT p99", 1000.0, "ms"),
    ("tpot_p50_s", "TPOT p50", 1000.0, "ms"),
    ("tpot_p90_s", "TPOT p90", 1000.0, "ms"),
    ("e2e_p50_s", "E2E p50", 1.0, "s"),
    ("e2e_p90_s", "E2E p90", 1.0, "s"),
    ("prefix_hit", "prefix hits", 100.0, "%"),
    ("imbalance", "busiest over mean", 1.0, ""),
)


def shown(value: Interval, factor: float = 1.0, unit: str = "", *, signed: bool = False) -> str:
    """Return a mean with its margin, such as "12.3 ± 0.4 ms"; digits as the margin deserves."""
    mean, half = value.mean * factor, value.half * factor
    if math.isnan(mean):
        return "-"
    margin = half if half > abs(mean) / 1e6 else abs(mean) / 100
    digits = min(3, max(0, 1 - math.floor(math.log10(margin)))) if margin > 0 else 0
    text = f"{mean:+.{digits}f}" if signed else f"{mean:.{digits}f}"
    if not math.isnan(half):
        text += f" ± {half:.{digits}f}"
    return f"{text} {unit}".rstrip()


def sentences(study: Study, *, has_slos: bool) -> list[str]:
    """Return what the study found, a sentence for each question."""
    return [_replicas(study, has_slos), _profile(study), *_fewer(study), *_thresholds(study)]


def _replicas(study: Study, has_slos: bool) -> str:
    goal = f"{study.goal * 100:g} %"
    verb = "meet their SLOs" if has_slos else "are served (the workload states no SLOs)"
    most = study.counts[-1]
    if study.enough is None:
        return (
            f"No count up to {_count(most.point.replicas)} suffices for {goal} of the requests to {verb}: "
            f"with {most.point.replicas} it is {_percent(most.goodput)}."
        )
    count = study.enough.point.replicas
    text = (
        f"{_count(count)} {'is' if count == 1 else 'are'} the smallest count with which {goal} of the "
        f"requests {verb}: {_percent(study.enough.goodput)}"
    )
    fewer = [each for each in study.counts if each.point.replicas == count - 1]
    return f"{text}; with {count - 1} it is {_percent(fewer[0].goodput)}." if fewer else f"{text}."


def _profile(study: Study) -> str:
    best = better_profile(study.profiles)
    count = study.profiles[0].measured.point.replicas
    tried = f"of {len(study.profiles)} profiles tried at {_count(count)}"
    if best is None:
        return f"The pool's own profile: none {tried} is better beyond the margins."
    return (
        f"The profile {best.name} is the best {tried}: "
        f"{shown(best.goodput_gain, 100, signed=True)} points of requests within SLOs and a mean TTFT "
        f"shorter by {shown(best.ttft_gain_s, 1000, 'ms')}, compared with the pool's own."
    )


def _fewer(study: Study) -> list[str]:
    """Say that a profile saves a replica, where it does."""
    fewer = study.fewer
    if fewer is None or not meets(fewer.measured, study.goal):
        return []
    replicas = fewer.measured.point.replicas
    suffice = f"{_count(replicas)} already suffice{'s' if replicas == 1 else ''}"
    return [f"With the profile {fewer.name}, {suffice}: {_percent(fewer.measured.goodput)}."]


def better_profile(profiles: Sequence[Profile]) -> Profile | None:
    """Return the best profile, if it beats the pool's own beyond the margins in goodput, or in mean time to
    first token without a loss of goodput."""
    best = profiles[0]
    if best.name == OWN:
        return None
    gains = best.goodput_gain.low > 0
    faster = best.ttft_gain_s.low > 0 and not best.goodput_gain.high < 0
    return best if gains or faster else None


def _thresholds(study: Study) -> list[str]:
    highest, enough = study.highest, study.enough
    if highest is None or enough is None:
        return []
    now, then = enough.load, highest.load
    if highest.point.scale >= MOST_LOAD:
        count = enough.point.replicas
        text = (
            f"No threshold was found: {_count(count)} bear{'s' if count == 1 else ''} {MOST_LOAD:g} times "
            f"this load within the goal, and more was not tried. There a replica has "
            f"{shown(then['in_flight'])} requests in flight; at this load it has {shown(now['in_flight'])}."
        )
        return [text]
    bears = (
        f"{_count(enough.point.replicas)} bear{'s' if enough.point.replicas == 1 else ''} "
        f"{highest.point.scale:.2f} times this load within the goal"
    )
    rate, rate_now = (shown(each["requests_per_s"], unit="requests/s") for each in (then, now))
    text = (
        f"Scale out when a replica has {shown(then['in_flight'])} requests in flight (running and waiting) "
        f"or gets {rate}: {bears}. At this load a replica has {shown(now['in_flight'])} and gets {rate_now}; "
        f"its KV cache is {shown(then['kv_cache'], 100, '%')} full at the threshold, "
        f"{shown(now['kv_cache'], 100, '%')} now."
    )
    return [text]


def verdict(name: str, change: Interval) -> str:
    """Return whether a difference of the second from the first is better, worse, or within its margin."""
    if math.isnan(change.half) or change.low <= 0 <= change.high:
        return "="
    return "better" if (change.mean > 0) == (name in MORE_IS_BETTER) else "worse"


def _count(replicas: int) -> str:
    return f"{replicas} replica{'' if replicas == 1 else 's'}"


def _percent(value: Interval) -> str:
    return shown(value, 100, "%")


def study_json(study: Study, *, has_slos: bool) -> dict[str, Any]:
    """Return the study as JSON values; a figure without a value is null."""
    best = better_profile(study.profiles)
    return {
        "goal": study.goal,
        "pool": _measured(study.own),
        "replicas": {
            "smallest": study.enough.point.replicas if study.enough else None,
            "tried": [_measured(each) for each in study.counts],
        },
        "profiles": {
            "best": best.name if best else OWN,
            "tried": [_profile_json(each) for each in study.profiles],
            "with_one_replica_less": _profile_json(study.fewer) if study.fewer else None,
        },
        "autoscaling": {
            "load_scale_is_limit": bool(study.highest and study.highest.point.scale < MOST_LOAD),
            "load_scale": study.highest.point.scale if study.highest else None,
            "per_replica": _intervals(study.highest.load) if study.highest else None,
        },
        "sentences": sentences(study, has_slos=has_slos),
    }


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as JSON values."""
    return {
        "first": _measured(comparison.first),
        "second": _measured(comparison.second),
        "differences": {
            name: {**_interval(change), "verdict": verdict(name, change)}
            for name, change in comparison.differences.items()
        },
    }


def _profile_json(profile: Profile) -> dict[str, Any]:
    return {
        "name": profile.name,
        **_measured(profile.measured),
        "goodput_gain": _interval(profile.goodput_gain),
        "ttft_mean_gain_s": _interval(profile.ttft_gain_s),
    }


def _measured(measured: Measured) -> dict[str, Any]:
    return {
        "replicas": measured.point.replicas,
        "figures": _intervals(measured.figures),
        "load": _intervals(measured.load),
    }


def _intervals(values: Mapping[str, Interval]) -> dict[str, Any]:
    return {name: _interval(each) for name, each in values.items()}


def _interval(value: Interval) -> dict[str, float | None]:
    return {name: None if math.isnan(part) else part for name, part in value._asdict().items()}
