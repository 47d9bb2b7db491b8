"""The contract of deciders: plugins that say whether a request needs a further stage."""

from abc import abstractmethod

from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Plugin


class Decider(Plugin):
    """Says for each request whether an optional stage runs. A profile handler refers to it by name."""

    __slots__ = ()

    @abstractmethod
    def wants(self, request: InferenceRequest, decode: Candidates) -> bool:
        """Tell whether the stage runs for the request.

        `decode` are the candidates of the decode stage. When that has run already, they have its order and
        what the decider consumes; before that they have neither.
        """
