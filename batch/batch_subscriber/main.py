"""Command `headroom-batch`: its place is kept, its work is not written yet."""

import sys


def main() -> int:
    """Say that this version has no batch subscriber, and exit with status 2."""
    sys.stderr.write(
        "headroom-batch: this version of Headroom has no batch subscriber; "
        "send requests to the gateway. See CHANGELOG.md.\n"
    )
    return 2
