"""Calls to Pub/Sub over gRPC: the URL, tokens, publishing, acknowledging."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, urlsplit

from batch_subscriber import pubsub_wire as wire
from batch_subscriber.errors import BatchError, ConfigurationError
from batch_subscriber.google_token import FileToken, MetadataToken, NoToken, TokenError, TokenSource
from lean_grpc import CallError, Channel, Limits, MessageStream, client_context

#: A message has at most 10 MB; a request may have a little more.
_MESSAGE: Final = 12 * 2**20
_LIMITS: Final = Limits(
    keepalive_interval=330.0,
    stream_window=2**22,
    connection_window=2**24,
    max_receive_message=32 * 2**20,
    max_send_message=_MESSAGE,
    stream_send_limit=2 * _MESSAGE,
)
#: Bounds of one PublishRequest, and of ack ids in one request.
PUBLISH_MESSAGES: Final = 500
PUBLISH_BYTES: Final = 9_950_000
ACK_IDS: Final = 1000
_ANSWER_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class PubSubUrl:
    """`pubsub://PROJECT/NAME?...`."""

    project: str
    name: str
    names: Mapping[str, str]
    limits: Mapping[str, int]


def pubsub_url(url: str, names: Sequence[str], limits: Sequence[str]) -> PubSubUrl:
    """Return the parts of `pubsub://PROJECT/NAME?TEXT=...&LIMIT=number`.

    Every URL may have `endpoint` (HOST:PORT of a fake server, without TLS) and `token_file`. Raises
    ConfigurationError.
    """
    parts = urlsplit(url)
    name = parts.path.strip("/")
    if not parts.netloc or not name or "/" in name:
        msg = f"{url!r} must be pubsub://PROJECT/NAME"
        raise ConfigurationError(msg)
    texts: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for field, value in parse_qsl(parts.query, keep_blank_values=True):
        if field in limits and value.isascii() and value.isdigit() and 0 < int(value) < 2**40:
            numbers[field] = int(value)
        elif field in (*names, "endpoint", "token_file") and value:
            texts[field] = value
        else:
            known = ", ".join(sorted([*names, *limits, "endpoint", "token_file"]))
            msg = f"{url!r}: {field}={value} is no parameter or no value of one; there are {known}"
            raise ConfigurationError(msg)
    return PubSubUrl(parts.netloc, name, texts, numbers)


class PubSubLink:
    """A channel to Pub/Sub. Methods raise `unavailable` when it does not do what it should."""

    def __init__(
        self, url: PubSubUrl, unavailable: type[BatchError], tokens: TokenSource | None = None
    ) -> None:
        """Prepare the channel; the first call connects. Needs a running loop."""
        self._project = url.project
        self._unavailable = unavailable
        endpoint = url.names.get("endpoint")
        if tokens is None:
            file = url.names.get("token_file")
            tokens = NoToken() if endpoint else FileToken(Path(file)) if file else MetadataToken()
        self._tokens = tokens
        try:
            self._channel = Channel(
                endpoint or "pubsub.googleapis.com:443",
                tls=None if endpoint else client_context(),
                tls_name=None if endpoint else "pubsub.googleapis.com",
                authority=None if endpoint else "pubsub.googleapis.com",
                limits=_LIMITS,
            )
        except ValueError as wrong:
            raise ConfigurationError(str(wrong)) from wrong

    def topic(self, name: str) -> str:
        """Return the full name of a topic of the project; a full one stays as it is."""
        return name if "/" in name else f"projects/{self._project}/topics/{name}"

    def subscription(self, name: str) -> str:
        """Return the full name of a subscription of the project; a full one stays as it is."""
        return name if "/" in name else f"projects/{self._project}/subscriptions/{name}"

    async def publish(self, topic: str, messages: Sequence[tuple[bytes, Mapping[str, str]]]) -> None:
        """Publish (data, attributes) durably, in requests of a size that Pub/Sub takes."""
        begin = size = 0
        for at, (data, _) in enumerate(messages):
            if at > begin and (at - begin >= PUBLISH_MESSAGES or size + len(data) > PUBLISH_BYTES):
                await self._call(
                    wire.PUBLISH, "topic", topic, wire.publish_request(topic, messages[begin:at])
                )
                begin, size = at, 0
            size += len(data)
        if messages:
            await self._call(wire.PUBLISH, "topic", topic, wire.publish_request(topic, messages[begin:]))

    async def acknowledge(self, subscription: str, ack_ids: Sequence[str]) -> None:
        """Remove messages for good."""
        for at in range(0, len(ack_ids), ACK_IDS):
            request = wire.acknowledge_request(subscription, ack_ids[at : at + ACK_IDS])
            await self._call(wire.ACKNOWLEDGE, "subscription", subscription, request)

    async def set_deadline(self, subscription: str, ack_ids: Sequence[str], seconds: int) -> None:
        """Have messages come again in so many seconds, at most 600; 0: at once."""
        for at in range(0, len(ack_ids), ACK_IDS):
            request = wire.deadline_request(subscription, ack_ids[at : at + ACK_IDS], seconds)
            await self._call(wire.MODIFY_ACK_DEADLINE, "subscription", subscription, request)

    async def pull(self, subscription: str, most: int) -> list[wire.Message]:
        """Return messages that are there, without waiting."""
        answer = await self._call(
            wire.PULL, "subscription", subscription, wire.pull_request(subscription, most)
        )
        return self._read(answer)

    async def stream(self, subscription: str) -> MessageStream:
        """Return a StreamingPull call; the caller sends the first request."""
        metadata = await self._metadata("subscription", subscription)
        return self._channel.stream(wire.STREAMING_PULL, metadata=metadata, wait_for_ready=True)

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    def _read(self, payload: bytes) -> list[wire.Message]:
        try:
            return wire.received(payload)
        except ValueError as wrong:
            msg = f"an answer that is no Pub/Sub message: {wrong}"
            raise self._unavailable(msg) from wrong

    async def _call(self, method: str, kind: str, name: str, request: bytes) -> bytes:
        metadata = await self._metadata(kind, name)
        try:
            return await self._channel.unary(method, request, timeout=_ANSWER_S, metadata=metadata)
        except CallError as failure:
            msg = f"{name}: {failure}"
            raise self._unavailable(msg) from failure

    async def _metadata(self, kind: str, name: str) -> list[tuple[str, str]]:
        try:
            token = await self._tokens.token()
        except TokenError as fault:
            raise self._unavailable(str(fault)) from fault
        pairs = [("x-goog-request-params", f"{kind}={quote(name, safe='')}")]
        return [("authorization", f"Bearer {token}"), *pairs] if token else pairs
