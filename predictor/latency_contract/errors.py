"""What can be wrong with a message or a bundle."""

from latency_contract.schema import SCHEMA_HASH


class ContractError(Exception):
    """Bytes or files that do not keep the contract; the message says what to do about it."""


class WireError(ContractError):
    """Bytes that are no message of the contract, or exceed a limit of it."""


class SchemaMismatchError(ContractError):
    """Made under another feature schema than this program's."""

    def __init__(self, found: bytes) -> None:
        self.found = found
        super().__init__(
            f"feature schema {found.hex()}, and this program has {SCHEMA_HASH.hex()}: "
            "picker, trainer and prediction servers must be of one version"
        )


class BundleError(ContractError):
    """A bundle that is incomplete, corrupt, or not readable."""
