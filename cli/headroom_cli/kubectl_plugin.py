"""Command `kubectl-headroom`: the commands on pools of a cluster, for `kubectl headroom`."""

import argparse
import sys
from collections.abc import Sequence

from headroom_cli.explain import main as explain
from headroom_cli.picker_pages import PickerPageError
from headroom_cli.predictor import main as predictor
from headroom_cli.top import main as top
from inference_api.release import release_version


def plugin(argv: Sequence[str] | None = None) -> int:
    """Run `kubectl-headroom`, which kubectl finds on the path and runs for `kubectl headroom`."""
    parser = argparse.ArgumentParser(
        prog="kubectl headroom", description="Headroom's inference pools.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=release_version())
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    explain.add_commands(commands)
    top.add_commands(commands)
    predictor.add_commands(commands)
    given = parser.parse_args(argv)
    try:
        return int(given.run(given))
    except PickerPageError as error:
        print(f"kubectl headroom: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        sys.stderr.close()  # else the interpreter would complain there that it cannot flush standard output
        return 1
    except KeyboardInterrupt:
        return 130
