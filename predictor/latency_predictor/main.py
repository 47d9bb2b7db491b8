"""Commands `headroom-trainer` and `headroom-predictor`: their place is kept, their work is to come."""

import sys


def trainer() -> int:
    """Say that this version has no trainer, and exit with status 2."""
    return _absent("headroom-trainer")


def predictor() -> int:
    """Say that this version has no prediction server, and exit with status 2."""
    return _absent("headroom-predictor")


def _absent(command: str) -> int:
    sys.stderr.write(
        f"{command}: this version of Headroom has no latency predictor; "
        "pickers decide by queue, KV cache and prefix cache. See CHANGELOG.md.\n"
    )
    return 2
