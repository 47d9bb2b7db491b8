"""destination-endpoint-served-verifier: the response says which endpoint served it. For conformance tests."""

from collections.abc import Iterable
from typing import Final

from typing_extensions import override

from endpoint_picker.decision import Decision
from endpoint_picker.record import Record
from endpoint_picker.scheduling.plugin import Follower

HEADER: Final = "x-conformance-test-served-endpoint"
#: Value of the header when the proxy does not report the endpoint; the conformance suite's picker sends it.
MISSING: Final = "fail: missing destination endpoint served metadata"


class DestinationEndpointServedVerifier(Follower):
    """Sets the response header x-conformance-test-served-endpoint to the endpoint that the proxy reports.

    Without a report its value begins with "fail: ".
    """

    __slots__ = ()
    type_name = "destination-endpoint-served-verifier"

    @override
    def response_headers(self, decision: Decision, record: Record) -> Iterable[tuple[str, str]]:
        """Return the header."""
        return ((HEADER, record.served_by or MISSING),)
