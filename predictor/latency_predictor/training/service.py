"""The training server: samples come in over gRPC, go to the journal and to the learning process.

Methods under `/headroom.predictor.v1.Training/`: `Add` and `AddStream` (`latency_contract.sample_wire`);
`Status` answers JSON; `Flush` and `Rollback` take and answer nothing; `Pull` streams bundles and samples, to
a newer trainer or into an export; `Newest` streams the newest bundle, to trainers that follow this one;
`Import` takes the messages of an export as a stream and answers JSON.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from typing_extensions import override

from latency_contract import bundles
from latency_contract.errors import ContractError, SchemaMismatchError
from latency_contract.manifest import version_name
from latency_contract.sample_wire import (
    ADD_PATH,
    ADD_STREAM_PATH,
    Added,
    SampleBatch,
    decode_batch,
    encode_added,
    encode_batch,
)
from latency_contract.states import State
from latency_predictor.learning.intake import Counts, sift
from latency_predictor.training import archive, journal, transfer
from latency_predictor.training.child import LearningChild
from latency_predictor.training.flood import RowLimit
from latency_predictor.training.followed import FollowedTrainer
from latency_predictor.training.frames import Kind
from latency_predictor.training.learning_process import Work
from latency_predictor.training.paths import (
    FLUSH_PATH,
    IMPORT_PATH,
    NEWEST_PATH,
    PULL_PATH,
    ROLLBACK_PATH,
    STATUS_PATH,
)
from latency_predictor.training.settings import TrainerSettings
from lean_grpc import CallError, Channel, Metadata, Server, ServerCall, StatusCode

_log = logging.getLogger(__name__)


class TrainingService:
    """Everything of a trainer but its listeners. `clock` is seconds since the epoch."""

    def __init__(self, settings: TrainerSettings, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock
        self._journal = journal.Journal(settings.data)
        self._archive = None if settings.archive is None else archive.Archive(settings.archive)
        self._limit = RowLimit(settings.rows_per_second)
        self.counts = Counts()
        self.peer_error = ""
        self.is_ready = False
        work = Work(
            data=str(settings.data),
            models=str(settings.models),
            below=0,
            quantiles=settings.quantiles,
            bound=settings.bound,
            least_samples=settings.least_samples,
            longest_pause_s=settings.longest_pause_s,
            max_age_s=settings.max_age_s,
            threads=settings.threads,
        )
        self.child: LearningChild | FollowedTrainer
        if settings.follow:
            self.child = FollowedTrainer(settings.follow, settings.models)
        else:
            self.child = LearningChild(work, self._journal.rotate)

    def install(self, server: Server) -> None:
        """Add the methods to a server."""
        server.add_unary(ADD_PATH, lambda payload, call: encode_added(self.add(payload)))
        server.add(ADD_STREAM_PATH, lambda call: _AddStream(self, call))
        server.add_unary(STATUS_PATH, lambda payload, call: json.dumps(self.status()).encode())
        server.add_unary(FLUSH_PATH, lambda payload, call: _empty(self.flush))
        server.add_unary(ROLLBACK_PATH, lambda payload, call: _empty(self.roll_back))
        server.add(PULL_PATH, lambda call: _Pull(self, call))
        server.add(NEWEST_PATH, lambda call: _Newest(self, call))
        server.add(IMPORT_PATH, lambda call: _Import(self, call))

    def install_for_peers(self, server: Server) -> None:
        """Add the methods that change nothing."""
        server.add_unary(STATUS_PATH, lambda payload, call: json.dumps(self.status()).encode())
        server.add(PULL_PATH, lambda call: _Pull(self, call))

    @property
    def follows(self) -> str:
        """Return the address of the elected trainer; "" when this one learns."""
        return self._settings.follow

    async def start(self) -> None:
        """Without data, fetch what others have learned; then start to learn. Returns when the learning
        process has reported."""
        if not self.follows and self._is_empty() and not await self._pull_one() and self._archive is not None:
            self._archive.restore(self)
        self.child.start()
        await self.child.has_reported.wait()
        self.is_ready = True

    async def keep_archive(self) -> None:
        """Write the archive every few minutes until cancelled; end at once without one."""
        while self._archive is not None:
            await asyncio.sleep(archive.WRITE_S)
            await self._archive.write(self)

    async def stop(self) -> None:
        """Write the archive, and end the learning process."""
        if self._archive is not None and self.is_ready:
            await self._archive.write(self)
        await self.child.stop()

    async def _pull_one(self) -> bool:
        for peer in self._settings.peers:
            if await self._pull(peer):
                return True
        return False

    def _is_empty(self) -> bool:
        has_samples = any(True for _ in journal.read(self._settings.data, journal.Damage()))
        return not has_samples and not bundles.versions(self._settings.models)

    # Samples.

    def add(self, payload: bytes) -> Added:
        """Take an encoded batch. Raises CallError: FAILED_PRECONDITION for another schema,
        INVALID_ARGUMENT."""
        try:
            batch = decode_batch(payload)
        except SchemaMismatchError as error:
            raise CallError(StatusCode.FAILED_PRECONDITION, str(error)) from error
        except ContractError as error:
            raise CallError(StatusCode.INVALID_ARGUMENT, str(error)) from error
        return self.add_batch(batch, payload)

    def add_batch(self, batch: SampleBatch, payload: bytes | None = None) -> Added:
        """Take a batch; `payload` is the same batch as on the wire, if it came that way."""
        rows = len(batch)
        if not self._limit.allows(rows, time.monotonic()):
            return self._shed(rows)
        content = encode_batch(batch) if payload is None else payload
        _, counts = sift(batch, self._clock())
        if counts.accepted + counts.censored and not self.child.send(Kind.BATCH, content):
            return self._shed(rows)
        if counts.accepted and not self.follows:
            self._journal.append(content)
        self.counts.add(counts)
        return Added(counts.accepted + counts.censored, counts.rejected + counts.stale, 0)

    def _shed(self, rows: int) -> Added:
        self.counts.shed += rows
        return Added(0, 0, rows)

    # Control.

    def status(self) -> dict[str, Any]:
        """Return the state of the trainer, for people and for the operator."""
        return {
            "ready": self.is_ready,
            **self.child.status,
            "received": asdict(self.counts),
            "follows": self.follows,
            "learner_starts": self.child.starts,
            "disk_errors": self._journal.errors,
            "disk_error": self._journal.last_error,
            "peer_error": self.peer_error,
            "archive_error": "" if self._archive is None else self._archive.error,
            "versions": bundles.versions(self._settings.models),
        }

    def flush(self) -> None:
        """Forget all samples; the models stay. Raises CallError (UNAVAILABLE) when that cannot be done."""
        below = self._journal.rotate()
        try:
            journal.replace(self._settings.data, [], below=below)
        except OSError as error:
            raise CallError(StatusCode.UNAVAILABLE, f"samples on disk stay: {error.strerror}") from error
        self._order(Kind.FLUSH)

    def roll_back(self) -> None:
        """Take the newest trees back: the bundle before them is published again. Raises CallError."""
        self._order(Kind.ROLLBACK)

    def _order(self, kind: Kind) -> None:
        if not self.child.send(kind):
            raise CallError(StatusCode.UNAVAILABLE, "the learning process is not running; try again")

    # Transfer.

    def transferred(self) -> list[bytes]:
        """Return the messages for a newer trainer: the bundles, and the samples of the journal."""
        models = self._settings.models
        found = []
        for version in bundles.versions(models):
            try:
                found.append(bundles.load(models, version))
            except ContractError as error:
                _log.warning("bundle %s is not handed over: %s", version, error)
        self._journal.rotate()
        batches = (encode_batch(each) for each in journal.read(self._settings.data, journal.Damage()))
        return list(transfer.messages(found, batches))

    def newest(self) -> list[bytes]:
        """Return the messages of the newest bundle that can be used; none without one."""
        bundle, _ = bundles.load_newest(self._settings.models)
        return [] if bundle is None else list(transfer.messages([bundle], []))

    def take_over(self, received: transfer.Receiver, *, seeds: bool) -> None:
        """Publish bundles and keep samples of another trainer.

        With `seeds` the newest bundle becomes this pool's seed: it is published anew, in the state `SEEDED`.
        """
        chosen = received.bundles[-1:] if seeds else received.bundles
        for bundle in chosen:
            if seeds:
                bundle = _as_seed(bundle, int(self._clock() * 1000))
            try:
                bundles.publish(self._settings.models, bundle)
            except (ContractError, OSError) as error:
                received.errors.append(f"{bundle.manifest.version}: {error}")
                continue
            if seeds:
                self.child.send(Kind.SEED, bundle.manifest.version.encode("ascii"))
        for encoded in received.encoded:
            self._journal.append(encoded)
            if seeds:
                self.child.send(Kind.RESTORE, encoded)

    async def _pull(self, peer: str) -> bool:
        """Fetch from an older trainer; False, with the reason in `peer_error`, when there is nothing to
        get."""
        received = transfer.Receiver()
        try:
            async with asyncio.timeout(self._settings.peer_timeout_s):
                async with Channel([peer]) as channel:
                    async with channel.stream(PULL_PATH, wait_for_ready=False) as stream:
                        stream.end()
                        async for message in stream:
                            received.take(message)
        except (CallError, ContractError, OSError, TimeoutError) as error:
            self.peer_error = f"{peer}: {str(error) or type(error).__name__}"
            _log.warning("nothing was fetched from %s", self.peer_error)
            return False
        self.take_over(received, seeds=False)
        self.peer_error = "; ".join(received.errors)
        _log.info("%s gave %d bundles, %d batches", peer, len(received.bundles), len(received.batches))
        return True


def _empty(act: Callable[[], None]) -> bytes:
    act()
    return b""


def _as_seed(bundle: bundles.Bundle, milliseconds: int) -> bundles.Bundle:
    manifest = bundle.manifest
    version = version_name(milliseconds, manifest.version[14:])
    return bundles.Bundle(
        replace(manifest, version=version, state=State.SEEDED, parent="", created_s=milliseconds / 1000),
        bundle.trees,
    )


class _Silent:
    """Callbacks that a stream of one direction does not need."""

    __slots__ = ("_call", "_service")

    def __init__(self, service: TrainingService, call: ServerCall) -> None:
        self._service = service
        self._call = call

    def opened(self, metadata: Metadata) -> None:
        pass

    def received(self, payload: bytes) -> None:
        pass

    def ended(self) -> None:
        pass

    def aborted(self, code: StatusCode) -> None:
        pass

    def writable(self) -> None:
        pass


class _AddStream(_Silent):
    """Takes batches, one answer each."""

    __slots__ = ()

    @override
    def received(self, payload: bytes) -> None:
        try:
            added = self._service.add(payload)
        except CallError as error:
            self._call.finish(error.code, error.message)
            return
        self._call.send(encode_added(added))

    @override
    def ended(self) -> None:
        self._call.finish()


class _Pull(_Silent):
    """Sends everything, as fast as the other side reads."""

    __slots__ = ("_left",)

    def _messages(self) -> list[bytes]:
        return self._service.transferred()

    @override
    def ended(self) -> None:
        self._left = self._messages()
        self._left.reverse()
        self.writable()

    @override
    def writable(self) -> None:
        while self._left:
            if not self._call.send(self._left.pop()):
                return
        self._call.finish()


class _Newest(_Pull):
    """Sends the newest bundle."""

    __slots__ = ()

    @override
    def _messages(self) -> list[bytes]:
        return self._service.newest()


class _Import(_Silent):
    """Takes the messages of an export; answers JSON."""

    __slots__ = ("_received",)

    @override
    def opened(self, metadata: Metadata) -> None:
        self._received = transfer.Receiver()

    @override
    def received(self, payload: bytes) -> None:
        try:
            self._received.take(payload)
        except ContractError as error:
            self._call.finish(StatusCode.INVALID_ARGUMENT, str(error))

    @override
    def ended(self) -> None:
        received = self._received
        if follows := self._service.follows:
            self._call.finish(
                StatusCode.FAILED_PRECONDITION, f"import into the trainer that learns: {follows}"
            )
            return
        self._service.take_over(received, seeds=True)
        answer = {
            "bundles": len(received.bundles[-1:]),
            "samples": sum(len(each) for each in received.batches),
            "errors": received.errors,
        }
        self._call.send(json.dumps(answer).encode())
        self._call.finish()
