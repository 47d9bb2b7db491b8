"""Results in Redis or Valkey, and if wanted on a stream where others read them as they come."""

from typing import Any, Final

from typing_extensions import override

from batch_subscriber.errors import ResultError, StoreUnavailableError
from batch_subscriber.jobs import Result
from batch_subscriber.redis_link import RedisLink, RedisUrl, Script, redis_url
from batch_subscriber.results.interface import ResultStore
from batch_subscriber.wire import decode_result, encode_result

#: How long results are kept, and entries of the stream, unless the URL says otherwise.
KEEP_DAYS: Final = 30
TOPIC_LENGTH: Final = 100_000
#: A value may have 512 MB.
MAX_BYTES: Final = 500_000_000

#: KEYS: result, stream. ARGV: JSON, seconds, length of the stream or 0 for none. Returns 1 when it is kept.
_WRITE: Final = Script.of("""
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'EX', ARGV[2]) then return 0 end
if ARGV[3] ~= '0' then redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'result', ARGV[1]) end
return 1
""")


class RedisResults(ResultStore):
    """A key for each result; the result and its entry of the stream are written in one step."""

    def __init__(self, url: RedisUrl) -> None:
        """Use the keys `headroom:{NAME}:result:...`."""
        self._link = RedisLink(url, StoreUnavailableError)
        # The braces keep results and stream on one node of a cluster.
        self._prefix = f"headroom:{{{url.names.get('results', 'batch')}}}:result:"
        self._topic = f"headroom:{{{url.names.get('results', 'batch')}}}:{url.names.get('topic', '')}"
        self._length = url.limits.get("topic_length", TOPIC_LENGTH) if "topic" in url.names else 0
        self._keep_s = url.limits.get("keep_days", KEEP_DAYS) * 86_400

    def _key(self, job_id: str, generation: str) -> str:
        # A generation has no colon: the last one ends the id.
        return f"{self._prefix}{job_id}:{generation}"

    @override
    async def write(self, result: Result) -> bool:
        data = encode_result(result)
        if len(data) > MAX_BYTES:
            msg = f"the result has {len(data)} bytes, more than {MAX_BYTES}"
            raise ResultError(msg)
        keys = (self._key(result.job_id, result.generation), self._topic)
        return bool(await self._link.run(_WRITE, keys, data, self._keep_s, self._length))

    @override
    async def read(self, job_id: str, generation: str) -> Result | None:
        data: Any = await self._link.command("GET", self._key(job_id, generation))
        return None if data is None else decode_result(data)

    @override
    async def exists(self, job_id: str, generation: str) -> bool:
        return bool(await self._link.command("EXISTS", self._key(job_id, generation)))

    @override
    async def close(self) -> None:
        await self._link.close()


async def open_results(url: str) -> RedisResults:
    """Return the store of `redis://HOST:PORT/DB[?results=NAME&topic=STREAM&keep_days=N&topic_length=N]`.

    Raises ConfigurationError.
    """
    return RedisResults(redis_url(url, ("results", "topic"), ("keep_days", "topic_length")))
