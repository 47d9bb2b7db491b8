"""The bearer token and the TLS context of scrapes, read again when their files change."""

import logging
import re
import ssl
from pathlib import Path
from typing import Final

from endpoint_picker.datalayer.scrape_plan import ScrapePlan

_LOG: Final = logging.getLogger(__name__)

#: Seconds between two checks of the files: mounted tokens and certificates are replaced while a pod runs.
LOOK_S: Final = 10.0
#: Longest token that is sent.
MAX_TOKEN_BYTES: Final = 16_384
#: The characters of a token; a line break could end the header and begin another one.
_TOKEN: Final = re.compile(r"[!-~]+")


class ScrapeAccess:
    """Reads the files that a plan names. A fault is logged once, until it changes."""

    __slots__ = ("_complaint", "_looked_at", "_plan", "_seen", "context", "token", "version")

    def __init__(self, plan: ScrapePlan) -> None:
        self._plan = plan
        self._looked_at = -LOOK_S
        self._seen: tuple[tuple[str, int, int], ...] | None = None
        self._complaint = ""
        self.token = ""
        """The bearer token; "" when there is none."""
        self.context: ssl.SSLContext | None = None
        """TLS context of the connections; None without TLS, or until its files could be loaded."""
        self.version = 0
        """Grows with every change of token or context."""

    @property
    def is_usable(self) -> bool:
        """Tell whether the TLS context and the token that the plan asks for are loaded."""
        plan = self._plan
        return (not plan.uses_tls or self.context is not None) and (
            not plan.bearer_token_file or bool(self.token)
        )

    @property
    def complaint(self) -> str:
        """Return the fault of the last reading, without secrets; "" when there was none."""
        return self._complaint

    def look(self, now: float) -> None:
        """Read the files if they changed since the last good reading; check at most every `LOOK_S`."""
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        seen = tuple(_stamp(path) for path in self._plan.files)
        if seen == self._seen:
            return
        complaint = ""
        try:
            token = _token(self._plan.bearer_token_file) if self._plan.bearer_token_file else ""
            context = _context(self._plan) if self._plan.uses_tls else None
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            # Keep the old token and context: only a part of the files may have been replaced yet.
            complaint = str(error)
        else:
            self._seen = seen
            self.token, self.context = token, context
            self.version += 1
        if complaint and complaint != self._complaint:
            _LOG.error("files for scraping cannot be used", extra={"reason": complaint})
        self._complaint = complaint


def _stamp(path: str) -> tuple[str, int, int]:
    try:
        status = Path(path).stat()
    except OSError:
        return path, 0, 0
    return path, status.st_mtime_ns, status.st_ino


def _token(path: str) -> str:
    with Path(path).open("rb") as file:
        token = file.read(MAX_TOKEN_BYTES + 1).decode("ascii", errors="replace").strip()
    if len(token) > MAX_TOKEN_BYTES or not _TOKEN.fullmatch(token):
        msg = f"{path} does not hold a token: one line of visible ASCII, at most {MAX_TOKEN_BYTES} bytes"
        raise ValueError(msg)
    return token


def _context(plan: ScrapePlan) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=plan.ca_cert_path or None)
    if plan.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if plan.client_cert_path:
        context.load_cert_chain(plan.client_cert_path, plan.client_key_path or None)
    return context
