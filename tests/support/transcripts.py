"""Recorded ext-proc exchanges as text: the messages of Envoy (>) and the picker's replies (<).

A message is a line with its kind and size, its protobuf text in short, and its bytes as Python writes them
(=). The bytes count. The text is there to be read; `load` holds it against them.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from envoy_messages import pb

FOLDER = Path(__file__).parents[1] / "unit" / "epp" / "extproc" / "transcripts"
ENDPOINT = "127.0.7.7:8000"
#: What the pool's rewrites do in exchanges whose name says so.
REWRITE = ("alias", "served")
_WIDTH = 100
_HEADER = re.compile(r"headers \{\n\s+key: (.*)\n\s+raw_value: (.*)\n\s+\}")
_STRING = re.compile(r"fields \{\n\s+key: (.*)\n\s+value \{\n\s+string_value: (.*)\n\s+\}\n\s+\}")
_NO_METADATA = "metadata_context {\n}\n"
_SET = re.compile(
    r"set_headers \{\n\s+header \{\n\s+key: (.*)\n\s+raw_value: (.*)\n\s+\}\n\s+append_action: (.*)\n\s+\}"
)


@dataclass
class Exchange:
    """One exchange in one body mode."""

    mode: str
    """Of both bodies, as in Envoy's processing_mode."""
    messages: list[tuple[str, bytes]] = field(default_factory=list)
    """(">" or "<", bytes), in order."""
    status: str = ""
    """How the picker ended the stream, if not with OK: code and sentence."""

    def steps(self) -> Iterator[tuple[bytes, list[bytes]]]:
        """Yield each message of Envoy with the replies that follow it."""
        asked: bytes | None = None
        replies: list[bytes] = []
        for way, payload in self.messages:
            if way == "<":
                replies.append(payload)
                continue
            if asked is not None:
                yield asked, replies
            asked, replies = payload, []
        if asked is not None:
            yield asked, replies


def readable(way: str, payload: bytes) -> tuple[str, str]:
    """Return the kind of a message, and its protobuf text with one line for each header."""
    kind = pb.ProcessingRequest if way == ">" else pb.ProcessingResponse
    message: Any = kind.FromString(payload)
    text = text_format.MessageToString(message)
    text = _SET.sub(r"set_headers { \1 = \2 \3 }", _HEADER.sub(r"header { \1 = \2 }", text))
    text = _STRING.sub(r"field { \1 = \2 }", text.replace(_NO_METADATA, ""))
    return message.WhichOneof("request" if way == ">" else "response") or "nothing", text


def dump(title: str, exchanges: Iterable[Exchange]) -> str:
    lines = [
        f"# {title}: what Envoy sends (>) and what the picker answers (<). `make transcripts` writes this."
    ]
    for each in exchanges:
        lines += ["", f"== {each.mode}"]
        for way, payload in each.messages:
            kind, text = readable(way, payload)
            lines += ["", f"{way} {kind}, {len(payload)} bytes"]
            lines += [f"  {line}" for line in text.splitlines()]
            lines += [f"= {payload[at : at + _WIDTH]!r}" for at in range(0, len(payload), _WIDTH)]
        if each.status:
            lines += ["", f"! {each.status}"]
    return "\n".join(lines) + "\n"


def load(text: str) -> list[Exchange]:
    """Read a file. Raises ValueError when its readable parts do not say what its bytes say."""
    found: list[Exchange] = []
    for line in text.splitlines():
        if line.startswith("== "):
            found.append(Exchange(line[3:]))
        elif line[:2] in ("> ", "< "):
            found[-1].messages.append((line[0], b""))
        elif line.startswith("= "):
            way, payload = found[-1].messages[-1]
            found[-1].messages[-1] = way, payload + ast.literal_eval(line[2:])
        elif line.startswith("! "):
            found[-1].status = line[2:]
    title = text.partition(":")[0].removeprefix("# ")
    if dump(title, found) != text:
        message = f"the transcript {title!r} is not as it would be written"
        raise ValueError(message)
    return found
