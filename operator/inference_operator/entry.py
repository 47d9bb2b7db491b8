"""Entry point of `headroom-operator`: where a dependency is missing, it names the extra to install."""

import sys


def main() -> None:
    """Run the command; exit with status 1 and a sentence when it was installed without its extra."""
    try:
        from inference_operator.main import main as run
    except ModuleNotFoundError as missing:
        sys.exit(f"headroom-operator needs {missing.name}: pip install 'headroom-operator[operator]'")
    run()
