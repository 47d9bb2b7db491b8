"""Entry point of `headroom-trainer`: where a dependency is missing, it names the extra to install."""

import sys

from latency_predictor.supervise import run_supervised


def main() -> None:
    """Run the command, supervised or not."""
    run_supervised(_run)


def _run() -> None:
    """Run the command; exit with status 1 and a sentence when it was installed without its extra."""
    try:
        from latency_predictor.training.main import main as run
    except ModuleNotFoundError as missing:
        sys.exit(f"headroom-trainer needs {missing.name}: pip install 'headroom-operator[predictor]'")
    run()
