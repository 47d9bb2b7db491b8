"""Entry point of `headroom-operator`: where a dependency is missing, it names the extra to install."""

import os
import sys
from pathlib import Path


def main() -> None:
    """Run the command; exit with status 1 and a sentence when it was installed without its extra."""
    _have_a_home()
    try:
        from inference_operator.main import main as run
    except ModuleNotFoundError as missing:
        sys.exit(f"headroom-operator needs {missing.name}: pip install 'headroom-operator[operator]'")
    run()


def _have_a_home() -> None:
    """Set HOME for a user that has none: the Kubernetes client cannot be imported without.

    "/" is what container runtimes set for a user id without an entry in the user database.
    """
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = "/"
