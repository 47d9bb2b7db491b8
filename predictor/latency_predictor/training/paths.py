"""Methods of a trainer beside those that take samples (`latency_contract.sample_wire`)."""

from typing import Final

_SERVICE: Final = "/headroom.predictor.v1.Training"
STATUS_PATH: Final = f"{_SERVICE}/Status"
FLUSH_PATH: Final = f"{_SERVICE}/Flush"
ROLLBACK_PATH: Final = f"{_SERVICE}/Rollback"
PULL_PATH: Final = f"{_SERVICE}/Pull"
NEWEST_PATH: Final = f"{_SERVICE}/Newest"
IMPORT_PATH: Final = f"{_SERVICE}/Import"
