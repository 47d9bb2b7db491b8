"""The length of a request's prompt, as far as its body shows it. Pure."""

from endpoint_picker.datalayer.kv_events import TOKEN_BYTES
from endpoint_picker.datalayer.prefix_index import BYTES_PER_TOKEN
from endpoint_picker.request import InferenceRequest


def prompt_tokens(request: InferenceRequest) -> int:
    """Return the tokens of the prompt: the number of its token ids or an estimate by its bytes, the larger.

    The larger one, so that neither index can find more of the prompt than there is.
    """
    estimate = request.prompt_bytes // BYTES_PER_TOKEN
    known = request.tokens
    return estimate if known is None else max(estimate, len(known.ids) // TOKEN_BYTES)
