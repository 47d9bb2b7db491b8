"""Asking ready picker pods over HTTP about their configuration and connections. A thin shell.

It runs in tasks of its own and never delays a pass: a pass takes the latest answer, and a new answer wakes
the pool. A pod that does not answer costs a time-out of 2 s; the last answer is kept.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import aiohttp
from pydantic import ValidationError

from cluster_client.pods import pod_of
from cluster_client.selectors import selector_query
from inference_api.offered import OFFERED_PATH, Offered
from inference_operator.core.kinds import POD, Object, PoolKey
from inference_operator.core.naming import selector_labels
from inference_operator.core.picker_answers import PickerAnswer, Question, about_all, conclude
from inference_operator.shell.api import Api, ApiError, ApiUnavailable
from inference_operator.shell.supervision import end_tasks

log = logging.getLogger(__name__)

#: Seconds before each try of a new question. Tries end once the answer is settled, that is about the newest
#: text and all endpoints. After the last try, resyncs ask again.
_PAUSES: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
#: For a question that has had its tries before.
_ONCE: Final = (0.0,)
_TIMEOUT: Final = aiohttp.ClientTimeout(total=2.0)
_BODY_LIMIT: Final = 64 * 1024
#: Pools whose pods are asked at the same time.
_AT_ONCE: Final = 8
#: Most pods of one picker that are asked.
_MOST_PODS: Final = 8


@dataclass(slots=True)
class _Talk:
    """State of the questions to one picker."""

    question: Question | None = None
    known: PickerAnswer = field(default_factory=PickerAnswer)
    ended: float = 0.0
    """Time at which the last round ended, by the asker's clock."""
    task: asyncio.Task[None] | None = None

    @property
    def has_ended(self) -> bool:
        """Whether no round runs; a cancelled round counts as ended, too."""
        return self.task is None or self.task.done()

    def stop(self) -> None:
        """Cancel the round that runs."""
        if self.task is not None:
            self.task.cancel()
            self.task = None


class PickerAsker:
    """Asks the picker of each pool whose picker runs. Close it when done."""

    __slots__ = ("_again_after", "_api", "_clock", "_session", "_slots", "_talks", "_wake", "_watched_pods")

    def __init__(
        self,
        api: Api,
        wake: Callable[[PoolKey], None],
        again_after: float,
        *,
        watched_pods: Callable[[str, Mapping[str, str]], Sequence[Object] | None] = lambda _space, _labels: (
            None
        ),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wake` is called for each new answer. A question is repeated after `again_after` seconds.

        `watched_pods(namespace, labels)` returns pods from a watch; None where they have to be listed.
        """
        self._watched_pods = watched_pods
        self._clock = clock
        self._api = api
        self._wake = wake
        self._again_after = again_after
        self._talks: dict[PoolKey, _Talk] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._session: aiohttp.ClientSession | None = None

    def ask(self, key: PoolKey, question: Question | None) -> PickerAnswer:
        """Return the latest answer; start a round if the question is new or `again_after` s have passed.

        `question` is None while no pod can be asked; the latest answer is kept.
        """
        talk = self._talks.setdefault(key, _Talk())
        if question is None:
            talk.stop()
            talk.question = None
            talk.known = PickerAnswer(answer=talk.known.answer)  # of its connections nothing holds any more
        elif question != talk.question:
            talk.stop()
            talk.question = question
            talk.known = replace(talk.known, problem="", asking=True)
            talk.task = self._begin(key, talk, question, _PAUSES)
        elif talk.has_ended and self._clock() - talk.ended >= self._pause(talk):
            talk.task = self._begin(key, talk, question, _ONCE)
        return talk.known

    def _pause(self, talk: _Talk) -> float:
        soon = talk.known.again_within
        return self._again_after if soon is None else min(soon, self._again_after)

    def forget(self, key: PoolKey) -> None:
        """Stop asking: the operator runs no picker for the pool."""
        if (talk := self._talks.pop(key, None)) is not None:
            talk.stop()

    async def close(self) -> None:
        """Cancel all rounds, await them, and close the HTTP session."""
        tasks = [talk.task for talk in self._talks.values() if talk.task is not None]
        for key in list(self._talks):
            self.forget(key)
        await end_tasks(tasks)
        if self._session is not None:
            await self._session.close()

    def _begin(
        self, key: PoolKey, talk: _Talk, question: Question, pauses: tuple[float, ...]
    ) -> "asyncio.Task[None]":
        name = f"ask {'/'.join(key)}"
        return asyncio.create_task(self._talk(key, talk, question, pauses), name=name)

    async def _talk(self, key: PoolKey, talk: _Talk, question: Question, pauses: tuple[float, ...]) -> None:
        known = PickerAnswer(problem="no answer")
        try:
            for pause in pauses:
                await asyncio.sleep(pause)
                known = await self._ask_pods(question)
                if known.settled:
                    break
                if not known.problem:
                    self._learn(key, talk, known)
        except Exception:
            # A bug that one answer triggers must not end the asking: the condition becomes Unknown.
            log.exception("asking a picker broke", extra={"pool": "/".join(key)})
        talk.ended, talk.task = self._clock(), None
        self._learn(key, talk, known)

    def _learn(self, key: PoolKey, talk: _Talk, known: PickerAnswer) -> None:
        """Keep the new knowledge, with the older answer where it has none; wake the pool if it changed."""
        if known.answer is None:
            known = replace(known, answer=talk.known.answer)
        if known.health is None:
            known = replace(known, health=talk.known.health)
        if known.prediction is None and known.problem:
            known = replace(known, prediction=talk.known.prediction)
        if known != talk.known:
            talk.known = known
            self._wake(key)

    async def _ask_pods(self, question: Question) -> PickerAnswer:
        async with self._slots:
            labels = selector_labels(question.app)
            pods = self._watched_pods(question.namespace, labels)
            if pods is None:
                selector = selector_query(labels)
                try:
                    pods, _ = await self._api.list_all(POD, question.namespace, selector, cached=True)
                except (ApiError, ApiUnavailable):
                    return PickerAnswer(problem="the picker's pods cannot be listed")
            asked = [pod for pod in pods if pod_of(pod).is_serving][:_MOST_PODS]
            told = await asyncio.gather(*(self._ask_pod(pod, question) for pod in asked))
        said = [each for each in told if isinstance(each, Offered)]
        return conclude(question.mark, said, [each for each in told if isinstance(each, str)])

    async def _ask_pod(self, pod: Object, question: Question) -> Offered | str:
        """Return the pod's answer, or why there is none."""
        name, address = pod["metadata"]["name"], pod["status"]["podIP"]
        host = f"[{address}]" if ":" in address else address
        try:
            status, body = await self._get(f"http://{host}:{question.port}{OFFERED_PATH}")
            if status != 200:
                return f"pod {name} answered with HTTP status {status}"
            return about_all(question, Offered.model_validate_json(body))
        except (ValidationError, ValueError):
            return f"pod {name} gave an answer that this version does not understand"
        except (aiohttp.ClientError, TimeoutError, OSError):
            return f"pod {name} did not answer"

    async def _get(self, url: str) -> tuple[int, bytes]:
        """Return status and body. Raises ValueError when the body exceeds _BODY_LIMIT."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=_TIMEOUT,
                connector=aiohttp.TCPConnector(force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        body = bytearray()
        async with self._session.get(url, allow_redirects=False) as answer:
            async for piece in answer.content.iter_chunked(_BODY_LIMIT):
                body += piece
                if len(body) > _BODY_LIMIT:
                    raise ValueError("answer too long")
            return answer.status, bytes(body)
