"""The files and batches of OpenAI's API over HTTP."""

import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import BodyPartReader, web

from batch_subscriber.batches.api_errors import ApiError, not_found
from batch_subscriber.batches.keeper import Keeper
from batch_subscriber.batches.records import Batch, File, Status, new_batch
from batch_subscriber.batches.storage import Draft, Storage
from batch_subscriber.errors import StoreUnavailableError

#: Bounds of a request: an uploaded file, another field of the form, a JSON body, bytes.
MAX_UPLOAD_BYTES: Final = 200 * 2**20
_MAX_FIELD: Final = 1024
_MAX_JSON: Final = 64 * 1024
_MAX_PAGE: Final = {"files": 10_000, "batches": 100}
_CHUNK: Final = 256 * 1024
#: The shortest and longest time that a file may be asked to be kept, seconds.
_EXPIRES: Final = (3600, 30 * 86_400)

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_log = logging.getLogger(__name__)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class BatchApi:
    """The routes. `token` is what clients send as Authorization: Bearer; "" lets everyone in."""

    def __init__(
        self,
        storage: Storage,
        keeper: Keeper,
        *,
        token: Callable[[], str],
        max_upload_bytes: int = MAX_UPLOAD_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._storage = storage
        self._keeper = keeper
        self._token = token
        self._max_upload = max_upload_bytes
        self._clock = clock

    def app(self) -> web.Application:
        """Return the application."""
        app = web.Application(middlewares=[self._guard], client_max_size=_MAX_JSON)
        app.add_routes(
            [
                web.get("/healthz", self._health),
                web.post("/v1/files", self._upload),
                web.get("/v1/files", self._files),
                web.get("/v1/files/{id}", self._file),
                web.get("/v1/files/{id}/content", self._content),
                web.delete("/v1/files/{id}", self._delete),
                web.post("/v1/batches", self._create),
                web.get("/v1/batches", self._batches),
                web.get("/v1/batches/{id}", self._batch),
                web.post("/v1/batches/{id}/cancel", self._cancel),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Check the token; give every refusal the form of OpenAI's errors."""
        try:
            if request.path != "/healthz":
                self._check_token(request)
            return await handler(request)
        except ApiError as refused:
            return _refusal(refused)
        except web.HTTPRequestEntityTooLarge:
            return _refusal(ApiError(413, f"The body may have {_MAX_JSON} bytes", code="body_too_large"))
        except web.HTTPNotFound:
            return _refusal(ApiError(404, f"There is no {request.method} {request.path}", code="unknown_url"))
        except web.HTTPMethodNotAllowed:
            return _refusal(ApiError(405, f"{request.path} has no {request.method}", code="unknown_url"))
        except web.HTTPException as other:
            return _refusal(ApiError(other.status, other.reason))
        except StoreUnavailableError as fault:
            _log.warning("%s %s: %s", request.method, request.path, fault)
            return _refusal(
                ApiError(
                    503,
                    "The batch store cannot be reached; try again",
                    code="unavailable",
                    kind="server_error",
                )
            )

    def _check_token(self, request: web.Request) -> None:
        token = self._token()
        given = request.headers.get("Authorization", "")
        if token and not hmac.compare_digest(
            given.encode(errors="surrogateescape"), f"Bearer {token}".encode()
        ):
            said = (
                "Incorrect API key provided"
                if given
                else "No API key provided: send Authorization: Bearer KEY"
            )
            raise ApiError(401, said, code="invalid_api_key")

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    # Files.

    async def _upload(self, request: web.Request) -> web.Response:
        if not request.content_type.startswith("multipart/"):
            raise ApiError(400, "Send the file as multipart/form-data with the fields purpose and file")
        draft = self._storage.draft()
        try:
            fields, filename = await self._form(request, draft)
            if filename is None:
                raise ApiError(400, "Missing required parameter: 'file'", param="file")
            if fields.get("purpose") != "batch":
                raise ApiError(400, "purpose must be 'batch'", param="purpose")
            now = self._clock()
            file = File(
                id=f"file-{secrets.token_hex(16)}",
                purpose="batch",
                filename=filename,
                size=draft.size,
                created_at=now,
                expires_at=_expiry(fields, now),
            )
            await self._storage.add_file(draft, file)
        finally:
            draft.discard()
        return web.json_response(file.shown())

    async def _form(self, request: web.Request, draft: Draft) -> tuple[dict[str, str], str | None]:
        """Read the parts of a form in any order, the file into the draft."""
        fields: dict[str, str] = {}
        filename: str | None = None
        try:
            reader = await request.multipart()
            while (part := await reader.next()) is not None:
                if not isinstance(part, BodyPartReader) or len(fields) > 8:
                    raise ApiError(400, "The form has parts that it must not have")
                if part.name == "file":
                    filename = _legible(part.filename or "file")
                    while chunk := await part.read_chunk(_CHUNK):
                        draft.write(chunk)
                        if draft.size > self._max_upload:
                            message = f"The file has more than {self._max_upload} bytes; split it"
                            raise ApiError(413, message, param="file", code="file_too_large")
                else:
                    value = await part.read_chunk(_MAX_FIELD)
                    if not part.at_eof() and await part.read_chunk(1):
                        raise ApiError(400, f"The field {(part.name or '')[:100]!r} is too long")
                    fields[(part.name or "")[:100]] = value.decode(errors="replace")
        except (ValueError, AssertionError) as wrong:
            raise ApiError(400, f"The form cannot be read: {wrong}") from wrong
        return fields, filename

    async def _files(self, request: web.Request) -> web.Response:
        limit = _limit(request, "files", 10_000)
        order = request.query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise ApiError(400, "order must be asc or desc", param="order")
        found = await self._storage.files(
            limit + 1,
            request.query.get("after", ""),
            request.query.get("purpose", ""),
            newest_first=order == "desc",
        )
        return _page([file.shown() for file in found], limit)

    async def _file(self, request: web.Request) -> web.Response:
        return web.json_response((await self._named_file(request)).shown())

    async def _content(self, request: web.Request) -> web.StreamResponse:
        file = await self._named_file(request)
        path = self._storage.path(file.id)
        if not path.exists():
            raise not_found("File", file.id)
        headers = {"Content-Disposition": "attachment", "Content-Type": "application/octet-stream"}
        return web.FileResponse(path, headers=headers)

    async def _delete(self, request: web.Request) -> web.Response:
        name = _id(request, "File")
        await self._storage.delete_file(name)
        return web.json_response({"id": name, "object": "file", "deleted": True})

    async def _named_file(self, request: web.Request) -> File:
        return await self._storage.file(_id(request, "File"), self._clock())

    # Batches.

    async def _create(self, request: web.Request) -> web.Response:
        try:
            asked = json.loads(await request.read())
        except (ValueError, RecursionError) as wrong:
            raise ApiError(400, "The body is no JSON") from wrong
        batch = new_batch(
            asked,
            batch_id=f"batch_{secrets.token_hex(16)}",
            generation=secrets.token_hex(16),
            now=self._clock(),
        )
        try:
            file = await self._storage.file(batch.input_file_id, self._clock())
        except ApiError as missing:
            raise ApiError(400, missing.message, param="input_file_id", code="not_found") from missing
        if file.purpose != "batch":
            raise ApiError(400, f"{file.id} has the purpose {file.purpose}, not batch", param="input_file_id")
        await self._storage.add_batch(batch)
        self._keeper.look(batch.id)
        return web.json_response(batch.shown())

    async def _batches(self, request: web.Request) -> web.Response:
        limit = _limit(request, "batches", 20)
        found = await self._storage.batches(limit + 1, request.query.get("after", ""))
        return _page([batch.shown() for batch in found], limit)

    async def _batch(self, request: web.Request) -> web.Response:
        return web.json_response((await self._storage.batch(_id(request, "Batch"))).shown())

    async def _cancel(self, request: web.Request) -> web.Response:
        def change(batch: Batch) -> Batch:
            if batch.status in (Status.VALIDATING, Status.IN_PROGRESS):
                return batch.at(Status.CANCELLING, self._clock())
            if batch.status is Status.CANCELLING:
                return batch
            message = f"Cannot cancel a batch with status '{batch.status.value}'"
            # 400, since clients retry a 409.
            raise ApiError(400, message, param="id", code="invalid_status")

        batch = await self._storage.change(_id(request, "Batch"), change)
        self._keeper.look(batch.id)
        return web.json_response(batch.shown())


def _refusal(error: ApiError) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    if error.status in (429, 503):
        headers["Retry-After"] = "5"
    return web.json_response(error.body(), status=error.status, headers=headers)


def _id(request: web.Request, what: str) -> str:
    name = request.match_info["id"]
    if not _ID.fullmatch(name):
        raise not_found(what, name)
    return name


def _limit(request: web.Request, what: str, default: int) -> int:
    text = request.query.get("limit", str(default))
    most = _MAX_PAGE[what]
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:9]) <= most:
        raise ApiError(400, f"limit must be a whole number from 1 to {most}", param="limit")
    return int(text)


def _page(shown: list[dict[str, Any]], limit: int) -> web.Response:
    data = shown[:limit]
    return web.json_response(
        {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": len(shown) > limit,
        }
    )


def _expiry(fields: dict[str, str], now: float) -> float | None:
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if (
        anchor != "created_at"
        or not (seconds or "").isdigit()
        or not _EXPIRES[0] <= int(seconds or 0) <= _EXPIRES[1]
    ):
        message = f"expires_after: anchor must be created_at, seconds {_EXPIRES[0]} to {_EXPIRES[1]}"
        raise ApiError(400, message, param="expires_after")
    return now + int(seconds or 0)


def _legible(filename: str) -> str:
    return "".join(char if char.isprintable() else "_" for char in filename)[:255]
