"""The process that learns: frames of samples come in on stdin, bundles go to the models' folder, status to
stdout.

It is a process of its own, so that a training never delays the taking of samples. It may die at any time: the
service starts another one, which reads the samples from the journal and goes on with the newest bundle.
"""

import json
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import xgboost

from latency_contract import bundles
from latency_contract.errors import ContractError
from latency_contract.regimes import REGIME_NAMES
from latency_contract.sample_wire import decode_batch
from latency_predictor.learning.fit import FitSettings
from latency_predictor.learning.learner import Learner, LearnerSettings, Training
from latency_predictor.training import journal
from latency_predictor.training.frames import Kind, frame, read_frame
from latency_predictor.training.stored import batches_of

#: Frames that wait here; the pipe and the service hold what is beyond.
_WAITING: Final = 64
#: Seconds between two looks at calibration and state, and of status messages.
_LOOK_S: Final = 1.0
#: Journal files after which the kept samples are written anew, as one file.
_FILES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the process is started with, as JSON in its only argument."""

    data: str
    models: str
    below: int
    """Journal files with lower numbers are read at the start; the service writes those above."""
    quantiles: tuple[float, ...]
    bound: float
    least_samples: int
    longest_pause_s: float
    max_age_s: float
    threads: int

    def learner_settings(self) -> LearnerSettings:
        """Return the learner's part."""
        return LearnerSettings(
            fit=FitSettings(quantiles=tuple(self.quantiles), threads=self.threads),
            bound=list(self.quantiles).index(self.bound),
            least_samples=self.least_samples,
            longest_pause_s=self.longest_pause_s,
            max_age_s=self.max_age_s,
        )


class LearningProcess:
    """Takes frames, trains, publishes. `clock` is seconds since the epoch."""

    def __init__(
        self, work: Work, clock: Callable[[], float], tell: Callable[[dict[str, Any]], None]
    ) -> None:
        self._work = work
        self._clock = clock
        self._tell = tell
        self._data = Path(work.data)
        self._models = Path(work.models)
        self.learner = Learner(work.learner_settings())
        self._damage = journal.Damage()
        self._published: tuple[object, ...] = ()
        self._version = ""
        self._milliseconds = 0
        self._trainings = 0
        self._promotions = 0
        self._last_training: dict[str, Any] = {}
        self._error = ""
        self._looked_at = 0.0

    def start(self) -> None:
        """Read samples and the newest bundle from disk."""
        now = self._clock()
        for batch in journal.read(self._data, self._damage, below=self._work.below):
            self.learner.restore(batch, now)
        bundle, errors = bundles.load_newest(self._models)
        self._error = "; ".join(errors)
        if bundle is not None:
            self._seed(bundle, own=True)
        self._compact(self._work.below)
        self._report()

    def handle(self, kind: Kind, payload: bytes) -> None:
        """Act on one frame."""
        now = self._clock()
        match kind:
            case Kind.BATCH | Kind.RESTORE:
                try:
                    batch = decode_batch(payload)
                except ContractError as error:
                    self._error = str(error)
                    return
                if kind is Kind.BATCH:
                    self.learner.take(batch, now)
                else:
                    self.learner.restore(batch, now)
            case Kind.FLUSH:
                self.learner.flush()
                self._report()
            case Kind.ROLLBACK:
                self._roll_back()
            case Kind.SEED:
                try:
                    self._seed(bundles.load(self._models, payload.decode("ascii")), own=False)
                except (ContractError, UnicodeDecodeError) as error:
                    self._error = str(error)
                self._publish("")
            case Kind.STATUS:
                self._report()

    def look(self) -> None:
        """Train if a training is due; publish what changed; report once a second."""
        now = self._clock()
        reason = self.learner.due(now)
        if reason:
            begun = time.process_time()
            done = self.learner.train(now)
            self._note(done, reason, time.process_time() - begun)
            if done.promoted:
                self._publish("")
        if not reason and 0 <= now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        if self.learner.targets:
            self.learner.calibrate()
            if self._key() != self._published:
                self._publish(self._version)
        if len(journal.numbers(self._data)) > _FILES:
            newest = max(journal.numbers(self._data))
            self._compact(newest)
        self._report()

    def _note(self, done: Training, reason: str, cpu_s: float) -> None:
        self._trainings += 1
        self._promotions += bool(done.promoted)
        self._last_training = {
            "at_s": self._clock(),
            "reason": reason,
            "samples": done.samples,
            "cpu_s": round(cpu_s, 3),
            "promoted": [each.name.lower() for each in done.promoted],
            "kept": [each.name.lower() for each in done.kept],
        }

    def _key(self) -> tuple[object, ...]:
        learner = self.learner
        return (
            learner.state(),
            *((each, learner.serving(each)[1].tobytes()) for each in learner.targets),
            *(tuple(learner.watches[each].degraded) for each in learner.targets),
        )

    def _publish(self, parent: str) -> None:
        if not self.learner.targets:
            return
        # Two bundles of one millisecond, or after the clock was set back, must still be in order.
        self._milliseconds = max(int(self._clock() * 1000), self._milliseconds + 1)
        newest = bundles.newest_version(self._models)
        if newest is not None:
            self._milliseconds = max(self._milliseconds, int(newest[:13]) + 1)
        bundle = self.learner.bundle(self._milliseconds, parent)
        try:
            bundles.publish(self._models, bundle)
        except (OSError, ContractError) as error:
            self._error = f"bundle {bundle.manifest.version} was not published: {error}"
            return
        self._error = ""
        self._version = bundle.manifest.version
        self._published = self._key()

    def _seed(self, bundle: bundles.Bundle, *, own: bool) -> None:
        try:
            self.learner.seed(bundle, own=own)
        except xgboost.core.XGBoostError as error:
            self._error = f"{bundle.manifest.version}: {str(error).splitlines()[0][:200]}"
            return
        self._version = bundle.manifest.version
        self._milliseconds = int(bundle.manifest.version[:13])
        self._published = self._key()

    def _roll_back(self) -> None:
        listed = bundles.versions(self._models)
        current = listed[-1] if listed else ""
        bundle = None
        for version in reversed(listed):
            # What has the same trees goes as well: it differs in calibration only.
            try:
                older = bundles.load(self._models, version)
            except ContractError:
                continue
            if bundle is None:
                bundle = older
            elif any(
                older.manifest.models.get(each) is None or older.manifest.models[each].sha256 != model.sha256
                for each, model in bundle.manifest.models.items()
            ):
                self._seed(older, own=True)
                self._publish("")
                self._report()
                return
        self._error = f"there is no bundle before {current or 'the first'} to roll back to"
        self._report()

    def _compact(self, below: int) -> None:
        """Write the kept samples as one file in place of the files below a number."""
        if len(journal.numbers(self._data)) < 2:
            return
        try:
            journal.replace(self._data, batches_of(self.learner.snapshot(self._clock())), below=below)
        except OSError as error:
            self._error = f"samples cannot be written: {error.strerror}"
            journal.prune(self._data)

    def _report(self) -> None:
        learner = self.learner
        self._tell(
            {
                "state": learner.state().name.lower(),
                "version": self._version,
                "samples": len(learner),
                "counts": asdict(learner.counts),
                "strata": sum(each > 0 for each in learner.strata()),
                "trainings": self._trainings,
                "promotions": self._promotions,
                "last_training": self._last_training,
                "damaged_files": self._damage.files,
                "damaged_batches": self._damage.batches,
                "error": self._error,
                "targets": {each.name.lower(): self._target(each) for each in learner.targets},
            }
        )

    def _target(self, target: Any) -> dict[str, Any]:
        learner = self.learner
        watch = learner.watches[target]
        bundle = learner.errors(target)
        return {
            "samples": bundle[0],
            "stratified_error": bundle[1],
            "recent_error": bundle[2],
            "moves": watch.moves,
            "regimes": {
                name: {
                    "pairs": count,
                    "error": None if count == 0 else round(error, 4),
                    "coverage": None if count == 0 else round(coverage, 4),
                    "degraded": watch.degraded[number],
                }
                for number, (name, (count, error, coverage)) in enumerate(
                    zip(REGIME_NAMES, watch.errors(), strict=True)
                )
            },
        }


def run(stdin: BinaryIO, stdout: BinaryIO, work: Work, clock: Callable[[], float] = time.time) -> None:
    """Run until stdin ends."""
    arrived: queue.Queue[tuple[Kind, bytes] | None] = queue.Queue(_WAITING)

    def read() -> None:
        try:
            while (found := read_frame(stdin)) is not None:
                arrived.put(found)
        finally:
            arrived.put(None)

    def tell(status: dict[str, Any]) -> None:
        stdout.write(frame(Kind.STATUS, json.dumps(status).encode()))
        stdout.flush()

    process = LearningProcess(work, clock, tell)
    process.start()
    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            found = arrived.get(timeout=_LOOK_S / 4)
        except queue.Empty:
            process.look()
            continue
        if found is None:
            return
        process.handle(*found)
        if arrived.empty():
            process.look()


def main() -> None:
    """Run as `python -m latency_predictor.training.learning_process JSON`."""
    given = json.loads(sys.argv[1])
    given["quantiles"] = tuple(given["quantiles"])
    run(sys.stdin.buffer, sys.stdout.buffer, Work(**given))


if __name__ == "__main__":
    main()
