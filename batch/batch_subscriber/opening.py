"""From a URL to a queue, a result store or a set of cancelled groups. The one list of their kinds.

A kind is imported when its URL is used, so that a client library is needed only where it is used.
"""

from collections.abc import Callable, Coroutine, Mapping
from importlib import import_module
from typing import Any, Final, cast

from batch_subscriber.cancellations import Cancellations
from batch_subscriber.errors import ConfigurationError
from batch_subscriber.queues.interface import DeadLetters, JobQueue
from batch_subscriber.results.interface import ResultStore

Factory = Callable[[str], Coroutine[Any, Any, Any]]

#: Scheme of the URL: the module and its factory, `async def factory(url) -> queue`.
QUEUES: Final[Mapping[str, str]] = {
    "pubsub": "batch_subscriber.queues.pubsub:open_queue",
    "redis": "batch_subscriber.queues.redis_streams:open_queue",
    "rediss": "batch_subscriber.queues.redis_streams:open_queue",
    "sqlite": "batch_subscriber.queues.sqlite:open_queue",
}
RESULTS: Final[Mapping[str, str]] = {
    "az": "batch_subscriber.results.objects:open_results",
    "file": "batch_subscriber.results.files:open_results",
    "gs": "batch_subscriber.results.objects:open_results",
    "memory": "batch_subscriber.results.objects:open_results",
    "postgresql": "batch_subscriber.results.postgres:open_results",
    "pubsub": "batch_subscriber.opening:open_publishing_results",
    "redis": "batch_subscriber.results.redis_results:open_results",
    "rediss": "batch_subscriber.results.redis_results:open_results",
    "s3": "batch_subscriber.results.objects:open_results",
    "sqlite": "batch_subscriber.results.sqlite:open_results",
}
CANCELLATIONS: Final[Mapping[str, str]] = {
    # A queue keeps them under its own URL, but for Pub/Sub's.
    **{scheme: place for scheme, place in QUEUES.items() if scheme != "pubsub"},
    "postgresql": "batch_subscriber.results.postgres:open_results",
}
DEAD_LETTERS: Final = QUEUES


async def open_queue(url: str) -> JobQueue:
    """Return the queue of a URL. Raises ConfigurationError."""
    return cast("JobQueue", await _opened("queue", QUEUES, url))


async def open_results(url: str) -> ResultStore:
    """Return the result store of a URL. Raises ConfigurationError."""
    return cast("ResultStore", await _opened("result store", RESULTS, url))


async def open_publishing_results(url: str) -> ResultStore:
    """Return the store that `pubsub://PROJECT/TOPIC?store=URL` names, which publishes what it keeps."""
    from batch_subscriber.results.pubsub_topic import PublishingResults, split_url

    store, topic = split_url(url)
    return PublishingResults(await open_results(store), topic)


async def open_cancellations(url: str) -> Cancellations:
    """Return the cancelled groups of a URL. Raises ConfigurationError."""
    return cast("Cancellations", await _opened("set of cancelled groups", CANCELLATIONS, url))


async def open_dead_letters(url: str) -> DeadLetters:
    """Return the dead letters of the queue at a URL. Raises ConfigurationError."""
    return cast("DeadLetters", await _opened("queue with dead letters", DEAD_LETTERS, url))


async def _opened(what: str, kinds: Mapping[str, str], url: str) -> object:
    scheme, colon, _ = url.partition(":")
    place = kinds.get(scheme.lower()) if colon else None
    if place is None:
        known = ", ".join(f"{kind}:" for kind in sorted(kinds))
        msg = f"{url.rsplit('@', maxsplit=1)[-1]!r} is no {what}: it must begin with {known}"
        raise ConfigurationError(msg)
    module, _, name = place.partition(":")
    try:
        factory: Factory = getattr(import_module(module), name)
    except ModuleNotFoundError as missing:
        msg = f"a {what} of kind {scheme} needs {missing.name}: pip install 'headroom-operator[batch]'"
        raise ConfigurationError(msg) from missing
    return await factory(url)
