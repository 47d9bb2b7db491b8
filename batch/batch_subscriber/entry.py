"""Entry point of `headroom-batch`: where a dependency is missing, it names the extra to install."""

import sys


def main() -> None:
    """Run the command; exit with status 1 and a sentence when it was installed without its extra."""
    try:
        from batch_subscriber.main import main as run

        run()
    except ModuleNotFoundError as missing:
        sys.exit(f"headroom-batch needs {missing.name}: pip install 'headroom-operator[batch]'")
