"""The length of a request's prompt, as far as its body shows it. Pure."""

from endpoint_picker.datalayer.prefix_index import BYTES_PER_TOKEN
from endpoint_picker.request import InferenceRequest


def prompt_tokens(request: InferenceRequest) -> int:
    """Return the tokens of the prompt, estimated from its bytes."""
    return request.prompt_bytes // BYTES_PER_TOKEN
