"""Entry point of `headroom-model-server-sim`: where a dependency is missing, it names the extra."""

import sys


def main() -> int:
    """Run the command; exit with status 1 and a sentence when it was installed without its extra."""
    try:
        from model_server_sim.main import main as run
    except ModuleNotFoundError as missing:
        advice = "pip install 'headroom-operator[simulator]'"
        sys.exit(f"headroom-model-server-sim needs {missing.name}: {advice}")
    return run()
