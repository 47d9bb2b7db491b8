"""Results as objects of S3, Google Cloud Storage or Azure, each written once by a conditional put.

Credentials are those of the pod: the client library takes them from workload identity or the environment, and
a URL holds none.
"""

import hashlib
import re
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from obstore import exceptions
from obstore.store import AzureStore, GCSStore, MemoryStore, ObjectStore, S3Store
from typing_extensions import override

from batch_subscriber.errors import ConfigurationError, StoreUnavailableError
from batch_subscriber.jobs import Result
from batch_subscriber.results.interface import ResultStore
from batch_subscriber.wire import decode_result, encode_result

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
_TIMEOUT: Final = "30s"


class ObjectResults(ResultStore):
    """An object for each result: `PREFIX/ab/ID-ab12....json`, by the hash of id and generation."""

    def __init__(self, store: ObjectStore, prefix: str = "") -> None:
        """Use the objects of `store` whose names begin with `prefix`."""
        self._store = store
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""

    def name(self, job_id: str, generation: str) -> str:
        """Return the name of the object that a job's result has."""
        digest = hashlib.sha256(f"{job_id}\0{generation}".encode()).hexdigest()[:40]
        legible = _UNSAFE.sub("_", job_id)[:100]
        return f"{self._prefix}{digest[:2]}/{legible}-{digest}.json"

    @override
    async def write(self, result: Result) -> bool:
        name = self.name(result.job_id, result.generation)
        try:
            await self._store.put_async(name, encode_result(result), mode="create")
        except exceptions.AlreadyExistsError:
            return False
        except (exceptions.BaseError, OSError) as failure:
            raise StoreUnavailableError(_said(failure)) from failure
        return True

    @override
    async def read(self, job_id: str, generation: str) -> Result | None:
        try:
            answer = await self._store.get_async(self.name(job_id, generation))
            data = bytes(await answer.bytes_async())
        except FileNotFoundError:
            return None
        except (exceptions.BaseError, OSError) as failure:
            raise StoreUnavailableError(_said(failure)) from failure
        return decode_result(data)

    @override
    async def exists(self, job_id: str, generation: str) -> bool:
        try:
            await self._store.head_async(self.name(job_id, generation))
        except FileNotFoundError:
            return False
        except (exceptions.BaseError, OSError) as failure:
            raise StoreUnavailableError(_said(failure)) from failure
        return True

    @override
    async def close(self) -> None:
        """Do nothing: the library closes its connections itself."""


def _said(failure: Exception) -> str:
    return (str(failure).splitlines() or [type(failure).__name__])[0][:500]


async def open_results(url: str) -> ObjectResults:
    """Return the store of `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` or `memory:`.

    s3 takes `?region=` and `?endpoint=` (of a compatible server; http:// only on loopback), az `?account=`.
    Raises ConfigurationError.
    """
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    known = {"s3": {"region", "endpoint"}, "az": {"account"}}.get(parts.scheme, set())
    if unknown := sorted(given.keys() - known):
        msg = f"{url!r}: unknown parameter {unknown[0]}; it may have {', '.join(sorted(known)) or 'none'}"
        raise ConfigurationError(msg)
    if parts.scheme == "memory":
        return ObjectResults(MemoryStore())
    if not parts.hostname or "@" in parts.netloc:
        msg = f"{parts.scheme}: the URL must be {parts.scheme}://BUCKET[/PREFIX], without credentials"
        raise ConfigurationError(msg)
    try:
        return ObjectResults(_store(parts.scheme, parts.netloc, given), parts.path)
    except (exceptions.BaseError, ValueError) as wrong:
        msg = f"{url!r}: {_said(wrong)}"
        raise ConfigurationError(msg) from wrong


def _store(scheme: str, bucket: str, given: dict[str, str]) -> ObjectStore:
    options: dict[str, Any] = {"client_options": {"timeout": _TIMEOUT}}
    if scheme == "gs":
        return GCSStore(bucket, **options)
    if scheme == "az":
        return AzureStore(bucket, account_name=given.get("account"), **options)
    if endpoint := given.get("endpoint"):
        options["endpoint"] = endpoint
        if urlsplit(endpoint).hostname in ("127.0.0.1", "localhost", "::1"):
            options["client_options"] = {"timeout": _TIMEOUT, "allow_http": True}
    if region := given.get("region"):
        options["region"] = region
    return S3Store(bucket, **options)
