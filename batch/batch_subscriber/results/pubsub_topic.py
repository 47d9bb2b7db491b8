"""Results published to a Pub/Sub topic, beside a store that keeps them.

A result is published after it is kept. Should the process end in between, the job comes again: the worker
asks whether it has a result, and `exists` publishes the one that is kept. So every result is published at
least once; all copies have the same attribute `key`.
"""

import hashlib
from urllib.parse import parse_qsl, quote, urlsplit

from typing_extensions import override

from batch_subscriber.errors import ConfigurationError, ResultError, StoreUnavailableError
from batch_subscriber.jobs import Result
from batch_subscriber.pubsub_link import PUBLISH_BYTES, PubSubLink, PubSubUrl, pubsub_url
from batch_subscriber.results.interface import ResultStore
from batch_subscriber.wire import encode_result


class PublishingResults(ResultStore):
    """For the worker alone: any other caller of `exists` would publish as well."""

    def __init__(self, store: ResultStore, url: PubSubUrl) -> None:
        """Keep results in `store`, publish them to the topic of `url`."""
        self._store = store
        self._link = PubSubLink(url, StoreUnavailableError)
        self._topic = self._link.topic(url.name)

    @override
    async def write(self, result: Result) -> bool:
        if len(encode_result(result)) > PUBLISH_BYTES:
            msg = f"the result is larger than a message may be, {PUBLISH_BYTES} bytes"
            raise ResultError(msg)
        is_kept = await self._store.write(result)
        if is_kept:
            await self._publish(result)
        else:
            await self.exists(result.job_id, result.generation)
        return is_kept

    @override
    async def read(self, job_id: str, generation: str) -> Result | None:
        return await self._store.read(job_id, generation)

    @override
    async def exists(self, job_id: str, generation: str) -> bool:
        """Return whether the job has a result, and publish it then."""
        kept = await self._store.read(job_id, generation)
        if kept is not None:
            await self._publish(kept)
        return kept is not None

    async def _publish(self, result: Result) -> None:
        key = hashlib.sha256(f"{result.job_id}\0{result.generation}".encode()).hexdigest()[:40]
        attributes = {"key": key, "job_id": result.job_id}
        await self._link.publish(self._topic, [(encode_result(result), attributes)])

    @override
    async def close(self) -> None:
        await self._store.close()
        await self._link.close()


def split_url(url: str) -> tuple[str, PubSubUrl]:
    """Return the store's URL, and the topic, of `pubsub://PROJECT/TOPIC?store=URL`.

    Raises ConfigurationError.
    """
    parts = urlsplit(url)
    given = parse_qsl(parts.query, keep_blank_values=True)
    stores = [value for name, value in given if name == "store"]
    if len(stores) != 1:
        msg = f"{url!r} needs store=URL, the store that keeps the results; write & and ? in it as %26 and %3F"
        raise ConfigurationError(msg)
    rest = "&".join(f"{name}={quote(value, safe='')}" for name, value in given if name != "store")
    place = pubsub_url(f"{parts.scheme}://{parts.netloc}{parts.path}?{rest}", (), ())
    return stores[0], place
