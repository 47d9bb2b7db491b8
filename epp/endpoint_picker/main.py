"""Command `headroom-epp`: reads the command line, runs the picker, turns a failure into one line."""

import logging
import sys

import uvloop

from cluster_client.errors import ApiError
from endpoint_picker import app, check_config, settings
from endpoint_picker.observability.logs import set_up_logs
from endpoint_picker.tls import CertificateError

_log = logging.getLogger(__name__)


def main() -> None:
    """Run until SIGTERM, or check a configuration (`check_config.run`).

    Exit status: 0 after a drain, 1 when the picker cannot run, 2 for a bad command line, 130 for a
    KeyboardInterrupt.
    """
    if sys.argv[1:2] == ["check-config"]:
        sys.exit(check_config.run(sys.argv[2:]))
    chosen = settings.parse(sys.argv[1:])
    set_up_logs(chosen.log_level)
    try:
        uvloop.run(app.run(chosen))
    except (OSError, ApiError, CertificateError) as error:
        _log.error("cannot run: %s", error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
