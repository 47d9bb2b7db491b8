"""Entry points of `headroom` and `kubectl-headroom`: where a dependency is missing, they name the extra."""

import sys


def main() -> int:
    """Run the command; exit with status 1 and a sentence when it was installed without its extra."""
    try:
        from headroom_cli.main import main as run
    except ModuleNotFoundError as missing:
        sys.exit(f"headroom needs {missing.name}: pip install 'headroom-operator[local]'")
    return run()


def kubectl_plugin() -> int:
    """Run `kubectl-headroom`, likewise."""
    try:
        from headroom_cli.kubectl_plugin import plugin as run
    except ModuleNotFoundError as missing:
        sys.exit(f"kubectl-headroom needs {missing.name}: pip install 'headroom-operator[local]'")
    return run()
