"""The trainer's decisions: what it keeps, when it trains, what it promotes, what state it is in. Pure.

The clock is an argument; `train` takes as long as a fit takes, everything else microseconds a sample.
"""

import hashlib
import zlib
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from latency_contract.bundles import Bundle, sha256
from latency_contract.manifest import Manifest, TargetModel, version_name
from latency_contract.regimes import REGIMES, regimes_of
from latency_contract.sample_wire import COLUMNS, SampleBatch
from latency_contract.schema import INPUTS, SCHEMA_HASH, TARGETS, Target
from latency_contract.states import State
from latency_predictor.learning.candidates import RECENT, Candidate, candidate
from latency_predictor.learning.candidates import errors as judged
from latency_predictor.learning.fit import FitSettings, Fitted, fit
from latency_predictor.learning.intake import Counts, sift
from latency_predictor.learning.model import LogModel
from latency_predictor.learning.promotion import HoldoutErrors, may_replace
from latency_predictor.learning.strata import Samples, StratifiedSamples
from latency_predictor.learning.watch import TargetWatch

#: One sample in so many is held out of training.
HELD_OUT: Final = 10
#: Newest samples of which the regimes' shares of the traffic are counted.
TRAFFIC: Final = 200
#: Samples before the state became degraded that are of the changed traffic: so many had to come to show it.
BEFORE_DEGRADED: Final = 80
#: Samples of the changed traffic after which it is the traffic.
SETTLED: Final = 2000
#: New samples that begin a training while little of the changed traffic is known.
LEAST_AFTER_MOVE: Final = 40
#: An offset that moved less is not worth a new bundle.
_NOTABLE: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """How much is kept, and when a training begins."""

    fit: FitSettings = field(default_factory=FitSettings)
    bound: int = 1
    """Which of the fit's quantiles is the upper bound."""
    least_samples: int = 100
    """Before the first training."""
    growth: float = 0.2
    """A training begins when this share of the kept samples is new,"""
    most_new: int = 400
    """or so many, whichever is less."""
    least_pause_s: float = 1.0
    """Between two trainings."""
    longest_pause_s: float = 1800.0
    """With at least one new sample."""
    each_stratum: int = 1500
    total: int = 24_000
    max_age_s: float = 7 * 86_400.0


@dataclass(slots=True)
class _Serving:
    """The model that serves one target."""

    fitted: Fitted
    model: LogModel
    errors: HoldoutErrors
    coverage: float


@dataclass(frozen=True, slots=True)
class Training:
    """What a training came to."""

    promoted: tuple[Target, ...]
    kept: tuple[Target, ...]
    """Targets whose candidate was no better than the serving model."""
    samples: int


class Learner:
    """Takes samples, fits models, calibrates them, watches them."""

    def __init__(self, settings: LearnerSettings) -> None:
        self.settings = settings
        self.counts = Counts()
        store = settings.each_stratum, settings.total
        self._kept = StratifiedSamples(each=store[0], total=store[1], max_age_s=settings.max_age_s)
        self._held = StratifiedSamples(each=store[0] // 5, total=store[1] // 5, max_age_s=settings.max_age_s)
        self._serving: dict[Target, _Serving] = {}
        quantiles = settings.fit.quantiles
        median = min(range(len(quantiles)), key=lambda at: abs(quantiles[at] - 0.5))
        self.watches = {target: TargetWatch(quantiles, settings.bound, median) for target in TARGETS}
        self._offsets = {target: np.zeros((len(quantiles), REGIMES), np.float32) for target in TARGETS}
        self._traffic = np.zeros(0, np.intp)
        self._times = np.zeros(0)
        self._is_seeded = False
        self._new = 0
        self._trained_at: float | None = None
        self._has_fitted = False
        self._moved_since: float | None = None
        self._after = 0
        """Samples since then."""
        self._median = median

    # Samples.

    def take(self, batch: SampleBatch, now: float) -> Counts:
        """Take a batch as it came; return what became of its rows."""
        good, counts = sift(batch, now)
        self.counts.add(counts)
        if len(good):
            self._observe(good)
            held = held_out(good)
            self._kept.add(_rows(good, ~held))
            self._held.add(_rows(good, held))
            self._new += len(good)
        return counts

    def restore(self, batch: SampleBatch, now: float) -> None:
        """Take samples that were taken before a restart, or by another trainer: they calibrate nothing."""
        good, _ = sift(batch, now)
        held = held_out(good)
        self._kept.add(_rows(good, ~held))
        self._held.add(_rows(good, held))
        self._new += len(good)

    def snapshot(self, now: float) -> list[Samples]:
        """Return the samples that a restart needs."""
        return [self._kept.samples(now), self._held.samples(now)]

    def flush(self) -> int:
        """Forget all samples, not the models; return how many there were."""
        self._new = 0
        return self._kept.clear() + self._held.clear()

    def strata(self) -> list[int]:
        """Return how many samples each stratum keeps."""
        return self._kept.counts()

    def __len__(self) -> int:
        return len(self._kept) + len(self._held)

    def _observe(self, batch: SampleBatch) -> None:
        regimes = regimes_of(batch.matrix)
        self._traffic = np.concatenate([self._traffic, regimes])[-TRAFFIC:]
        self._times = np.concatenate([self._times, batch.time_s])[-TRAFFIC:]
        for target, serving in self._serving.items():
            has = np.isfinite(batch.actual[:, target])
            if has.any():
                raw = serving.model.raw(batch.matrix[has])
                logs = np.log(batch.actual[has, target])
                served = batch.predicted[has, target]
                self.watches[target].observe(raw, logs, regimes[has], served, self._offsets[target])
        self._after += len(batch)
        if self._moved_since is None and self.state() is State.DEGRADED:
            self._after = BEFORE_DEGRADED
            self._moved_since = float(np.sort(self._times)[-BEFORE_DEGRADED:][0])

    # Training.

    def due(self, now: float) -> str:
        """Return why a training should begin now; "" when none should."""
        settings, kept = self.settings, len(self)
        if kept < settings.least_samples or not self._new:
            return ""
        if self._trained_at is None:
            return "first"
        self._trained_at = min(self._trained_at, now)  # the clock may have been set back
        pause = now - self._trained_at
        if pause < settings.least_pause_s:
            return ""
        if not self._has_fitted:
            return "first"
        if self._moved_since is not None and self._new >= max(
            LEAST_AFTER_MOVE, settings.growth * self._after
        ):
            return "drift"
        if self._new >= min(settings.most_new, settings.growth * kept):
            return "new samples"
        return "time" if pause >= settings.longest_pause_s else ""

    def train(self, now: float) -> Training:
        """Fit a candidate for every target, and promote those that pass both hold-outs."""
        self._new = 0
        self._trained_at = now
        kept, held = self._kept.samples(now), self._held.samples(now)
        since_s, settings = -np.inf, [self.settings.fit]
        if self._moved_since is not None:
            after = int((kept.time_s >= self._moved_since).sum())
            since_s = self._moved_since
            settings.append(replace(self.settings.fit, half_life=max(after / 4, 25.0)))
            if after >= SETTLED:
                self._moved_since = None
        promoted: list[Target] = []
        refused: list[Target] = []
        for target in TARGETS:
            fitted = [fit(kept, target, each) for each in settings]
            found = [candidate(target, each, kept, held, since_s) for each in fitted if each is not None]
            if found:
                self._has_fitted = True
                best = min(found, key=self._recent_error)
                done = self._promote(target, best, has_moved=since_s > 0)
                (promoted if done else refused).append(target)
        if promoted:
            self._is_seeded = False
        return Training(tuple(promoted), tuple(refused), len(kept))

    def _recent_error(self, one: Candidate) -> float:
        error = np.abs(one.raw[self._median] - one.judges.logs)[-RECENT:]
        return float(np.median(error)) if len(error) else 0.0

    def _promote(self, target: Target, found: Candidate, *, has_moved: bool) -> bool:
        judges, serving = found.judges, self._serving.get(target)
        errors = judged(found.raw[self._median], judges)
        if serving is not None:
            served = serving.model.raw(judges.matrix)[self._median]
            old = judged(served + self._offsets[target][self._median, judges.regimes], judges)
            if not may_replace(errors, old, has_moved=has_moved):
                serving.errors = old
                return False
        elif not may_replace(errors, None, has_moved=False):
            return False
        watch = self.watches[target]
        watch.install(found.raw, judges.logs, judges.regimes, has_moved=has_moved)
        offsets = self._offsets[target] = watch.offsets()
        bound = self.settings.bound
        held = judges.logs <= found.raw[bound] + offsets[bound, judges.regimes]
        self._serving[target] = _Serving(
            found.fitted, found.model, errors, float(held.mean()) if len(judges) else np.nan
        )
        return True

    # What serves.

    def calibrate(self) -> bool:
        """Take the offsets of the latest outcomes; return whether one moved by more than a hundredth."""
        moved = False
        for target in self._serving:
            offsets = self.watches[target].offsets()
            if np.abs(offsets - self._offsets[target]).max() > _NOTABLE:
                moved = True
                self._offsets[target] = offsets
        return moved

    @property
    def targets(self) -> tuple[Target, ...]:
        """Return the targets that have a model."""
        return tuple(sorted(self._serving))

    def serving(self, target: Target) -> tuple[LogModel, NDArray[np.float32]]:
        """Return a target's model and its offsets. Raises KeyError when it has none."""
        return self._serving[target].model, self._offsets[target]

    def state(self) -> State:
        """Return the state: degraded when half of the latest traffic is in regimes that are."""
        if not self._serving:
            return State.WARMING
        bad = np.zeros(REGIMES, np.bool_)
        for target in self._serving:
            bad |= np.array(self.watches[target].degraded)
        if len(self._traffic) and bad[self._traffic].mean() >= 0.5:
            return State.DEGRADED
        return State.SEEDED if self._is_seeded else State.TRAINED

    def bundle(self, milliseconds: int, parent: str = "") -> Bundle:
        """Return what serves as a bundle of this time; `parent` is the version with the same trees."""
        models, trees = {}, {}
        for target, serving in self._serving.items():
            watch, fitted = self.watches[target], serving.fitted
            trees[target] = fitted.trees
            models[target] = TargetModel(
                file=f"{target.name.lower()}.ubj",
                sha256=sha256(fitted.trees),
                quantiles=fitted.quantiles,
                bound=self.settings.bound,
                coefficients=fitted.coefficients,
                offsets=tuple(tuple(float(each) for each in head) for head in self._offsets[target]),
                degraded=tuple(watch.degraded),
                samples=fitted.samples,
                stratified_error=_finite(serving.errors.stratified),
                recent_error=_finite(serving.errors.recent),
                coverage=_finite(serving.coverage),
            )
        digest = hashlib.sha256(f"{milliseconds} {models}".encode()).hexdigest()
        manifest = Manifest(
            version=version_name(milliseconds, digest),
            schema=SCHEMA_HASH.hex(),
            created_s=milliseconds / 1000,
            state=self.state(),
            models=models,
            parent=parent,
        )
        return Bundle(manifest, trees)

    def errors(self, target: Target) -> tuple[int, float | None, float | None]:
        """Return samples, stratified and recent hold-out error of a target's model; None is not measured."""
        serving = self._serving[target]
        errors = serving.errors
        return serving.fitted.samples, _finite(errors.stratified), _finite(errors.recent)

    def seed(self, bundle: Bundle, *, own: bool) -> None:
        """Serve an imported bundle, or with `own` one that this trainer published before. Raises
        xgboost.core.XGBoostError for trees that are no model.

        A bundle with other quantiles than the settings' is left out.
        """
        for target, model in bundle.manifest.models.items():
            if model.quantiles != self.settings.fit.quantiles or model.bound != self.settings.bound:
                continue
            trees = bundle.trees[target]
            fitted = Fitted(
                model.coefficients,
                trees,
                model.quantiles,
                model.samples,
                0,
                np.zeros((len(model.quantiles), 0), np.float32),
                np.zeros(0, np.intp),
            )
            errors = HoldoutErrors(
                *(np.nan if each is None else each for each in (model.stratified_error, model.recent_error))
            )
            loaded = LogModel(target, model.coefficients, trees, len(model.quantiles))
            self._serving[target] = _Serving(fitted, loaded, errors, model.coverage or np.nan)
            self._offsets[target] = np.array(model.offsets, np.float32)
            self._is_seeded = not own or bundle.manifest.state is State.SEEDED


def held_out(batch: SampleBatch) -> NDArray[np.bool_]:
    """Return which rows are held out: by a checksum of the row, the same after a restart.

    Of a batch's rows that are equal in everything, each has a number, so that they are not all held out.
    """
    columns = [batch.time_s.astype("<f8").view("<f4").reshape(-1, 2), batch.matrix[:, :INPUTS], batch.actual]
    rows = np.ascontiguousarray(np.hstack(columns), dtype="<f4")
    seen: dict[bytes, int] = {}
    found = np.zeros(len(rows), np.bool_)
    for number, row in enumerate(rows):
        key = row.tobytes()
        before = seen[key] = seen.get(key, -1) + 1
        found[number] = zlib.crc32(before.to_bytes(4, "little"), zlib.crc32(key)) % HELD_OUT == 0
    return found


def _rows(batch: SampleBatch, mask: NDArray[np.bool_]) -> SampleBatch:
    columns = {name: getattr(batch, name)[mask] for name, _, _ in COLUMNS}
    return SampleBatch(batch.versions, **columns)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
