"""The simulator's own HTTP headers: they let a client verify which server answered and that no byte changed.

Names only. All but the last two are response headers.
"""

from typing import Final

SERVER_HEADER: Final = "x-sim-server"
"""POD_NAME, with `:port` added where one process has several ports; host:port without POD_NAME."""
ADDRESS_HEADER: Final = "x-sim-address"
"""host:port."""
REQUEST_BYTES_HEADER: Final = "x-sim-request-bytes"
"""Length of the request body as received."""
REQUEST_SHA256_HEADER: Final = "x-sim-request-sha256"
"""SHA-256 of the request body as received, hex."""
CONTENT_SHA256_HEADER: Final = "x-sim-content-sha256"
"""SHA-256 of the whole generated text in UTF-8, hex; known before the first token."""
ECHO_HEADER: Final = "x-sim-echo"
"""On a request, `1` asks for its own body back instead of an answer."""
RANK_HEADER: Final = "x-data-parallel-rank"
"""On a request, vLLM's: the data-parallel rank of the engine that is to serve it."""
