"""Command `headroom`: parses the command line and calls the module of the command's group.

Exit status: 0 done, 1 failed (one line on standard error says why), 2 a bad command line.
"""

import argparse
import sys
from collections.abc import Sequence

from headroom_cli import local
from headroom_cli.demo import main as demo
from headroom_cli.demo.failure import DemoError
from headroom_cli.explain import main as explain
from headroom_cli.picker_pages import PickerPageError
from headroom_cli.predictor import main as predictor
from headroom_cli.simulate import main as simulate
from headroom_cli.simulate.failure import SimulateError
from headroom_cli.top import main as top
from inference_api.release import release_version
from local_cluster.errors import LocalClusterError

_INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    """Return the whole command line."""
    whole = argparse.ArgumentParser(
        prog="headroom",
        description="Headroom: a local cluster to try it in, what pickers do and why, simulated pools.",
        epilog="Begin with `headroom demo up`: a cluster here, an InferencePool in it, and requests.",
    )
    whole.add_argument("--version", action="version", version=release_version())
    groups = whole.add_subparsers(required=True, metavar="GROUP")
    local.add_commands(groups)
    demo.add_commands(groups)
    explain.add_commands(groups)
    top.add_commands(groups)
    predictor.add_commands(groups)
    simulate.add_commands(groups)
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    command_line = parser()
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments:
        command_line.print_help(sys.stderr)
        return 2
    given = command_line.parse_args(arguments)
    try:
        return int(given.run(given))
    except (LocalClusterError, DemoError, PickerPageError, SimulateError) as error:
        print(f"headroom: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        sys.stderr.close()  # else the interpreter would complain there that it cannot flush standard output
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
