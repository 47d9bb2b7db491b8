"""Redirects of a scrape: another path or port of the same host is followed, another host never. Pure."""

import re
from typing import Final
from urllib.parse import urljoin, urlsplit

#: Redirects that one scrape follows.
MAX_REDIRECTS: Final = 3
#: Longest path, with its query.
_MAX_PATH: Final = 1024
_PATH: Final = re.compile(r"/[!-~]*")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def followed(location: str, asked: str) -> tuple[int, str] | None:
    """Return the port and path of `location`, resolved against the URL `asked`.

    None unless scheme and host are those of `asked`: a server must not send the scraper and its bearer token
    to another host.
    """
    if not location.isascii() or not location.isprintable():
        return None
    try:
        old, new = urlsplit(asked), urlsplit(urljoin(asked, location))
        port = new.port
    except ValueError:
        return None
    if (new.scheme, new.hostname) != (old.scheme, old.hostname) or new.username is not None:
        return None
    path = (new.path or "/") + (f"?{new.query}" if new.query else "")
    if len(path) > _MAX_PATH or not _PATH.fullmatch(path):
        return None
    return port or _DEFAULT_PORTS[new.scheme], path
