"""The TLS of the ext-proc port: a mounted pair, reloaded when it is replaced, or a self-signed one.

Gateways do not verify a self-signed certificate. It encrypts the traffic and proves no identity.
"""

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Final

from lean_grpc import ServerCertificate

_log = logging.getLogger(__name__)

#: Seconds between two checks of the mounted files.
LOOK_S: Final = 1.0


class CertificateError(Exception):
    """The mounted pair cannot be used; the text says which file and why."""


def mounted_pair(folder: Path) -> ServerCertificate:
    """Load tls.crt and tls.key from a folder, as a Secret volume has them. Raises CertificateError."""
    try:
        return ServerCertificate(folder)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            message = f"tls.key in {folder} is not the key of tls.crt"
        else:
            message = f"{folder} does not hold a PEM certificate and an unencrypted PEM key"
        raise CertificateError(message) from None
    except OSError as error:
        message = f"cannot read {error.filename}: {error.strerror}"
        raise CertificateError(message) from None


async def follow(pair: ServerCertificate) -> None:
    """Reload the mounted pair for new handshakes when it changes, until cancelled; ignore a faulty one."""
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            pair.refresh()
        except Exception:
            # Whatever it is, the next look may succeed; the end of this loop would only show when the
            # certificate expires.
            _log.exception("the mounted certificate could not be looked at")
