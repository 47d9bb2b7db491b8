"""What an inference API is to the picker: its paths, and how its bodies are read. Pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ext_proc.body.material import MAX_MATERIAL_BYTES, Value
from ext_proc.body.response.readers import ResponseReader

#: Most bytes of JSON that are kept of a part of the prompt: the longest material and some syntax.
PROMPT_BYTES: Final = MAX_MATERIAL_BYTES + MAX_MATERIAL_BYTES // 4
#: Most bytes kept of any other value: a model name of 1024 characters, all of them escaped.
VALUE_BYTES: Final = 16_384

#: The values of a body's keys, as far as they were asked for.
Fields = Mapping[str, Value]
Layout = Callable[[Fields], Iterator[bytes]]


class Form(Enum):
    """How a body holds its fields."""

    JSON = "json"
    MULTIPART = "multipart"
    GRPC = "grpc"
    """Frames of protobuf messages."""


@dataclass(frozen=True, slots=True, eq=False)
class Api:
    """One API of a model server."""

    name: str
    paths: tuple[str, ...]
    """The last segments of its paths, without a slash at the ends."""
    parser: str
    """Type of the plugin in requestHandler.parsers that stands for it."""
    layout: Layout
    """Lays out the prompt, as pieces of prompt material."""
    prompt: tuple[str, ...] = ()
    """Keys of what becomes tokens."""
    dialect: str = "openai"
    """Whose errors its clients read: "openai", "anthropic" or "grpc"."""
    needs_model: bool = False
    """The API demands a model; a request without one is refused."""
    max_tokens: tuple[str, ...] = ()
    """Keys of the longest answer, a dot between levels. The first that is present counts."""
    state: tuple[str, ...] = ()
    """Keys that name state on the server that answered an earlier request."""
    form: Form = Form.JSON
    extract: Callable[[bytes], dict[str, bytes] | bytes] | None = None
    """Of a gRPC message: its fields as JSON text, or the JSON that it wraps. Raises scan.NotReadError."""
    reader: Callable[[], ResponseReader] | None = None
    """Makes the reader of a response that is neither JSON nor events."""
    limits: Mapping[str, int] = field(init=False)
    """The keys that are read, each with the most bytes kept of its value."""
    token_keys: tuple[tuple[str, str], ...] = field(init=False)
    """`max_tokens` as (key, key within its object or "")."""

    def __post_init__(self) -> None:
        plain = ("model", "stream", *(key.partition(".")[0] for key in self.max_tokens), *self.state)
        limits = dict.fromkeys(plain, VALUE_BYTES) | dict.fromkeys(self.prompt, PROMPT_BYTES)
        object.__setattr__(self, "limits", limits)
        token_keys = tuple(
            (outer, inner) for outer, _, inner in (key.partition(".") for key in self.max_tokens)
        )
        object.__setattr__(self, "token_keys", token_keys)


def nothing(_fields: Fields) -> Iterator[bytes]:
    """Lay out nothing: the API has no prompt."""
    yield from ()
