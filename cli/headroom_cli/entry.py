"""Entry point of `headroom`: where a dependency is missing, it names the extra to install."""

import sys


def main() -> int:
    """Run the command; exit with status 1 and a sentence when it was installed without its extra."""
    try:
        from headroom_cli.main import main as run
    except ModuleNotFoundError as missing:
        sys.exit(f"headroom needs {missing.name}: pip install 'headroom-operator[local]'")
    return run()
