"""Reading a kubeconfig file, with its embedded certificates and keys put into memory files.

kubernetes.aio would write them to temporary files, which a container with a read-only root cannot make.
"""

import base64
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import yaml

from cluster_client.memory_file import memory_file

_EMBEDDABLE: Final = ("certificate-authority", "client-certificate", "client-key")


def read_kubeconfig(path: Path, held: ExitStack) -> dict[str, Any]:
    """Return the file's content, with paths of memory files in place of embedded data; `held` closes them.

    Paths relative to the file become absolute. Raises OSError, and ValueError for content that is no
    kubeconfig.
    """
    text = path.read_bytes()
    try:
        content: dict[str, Any] = yaml.safe_load(text)
        for kind in ("cluster", "user"):
            for entry in content.get(f"{kind}s") or ():
                _settle(entry.get(kind) or {}, path.absolute().parent, held)
    # The content may be any YAML, so that its use as a kubeconfig can raise each of these.
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"it is no kubeconfig ({type(error).__name__})") from error
    return content


def _settle(section: dict[str, Any], folder: Path, held: ExitStack) -> None:
    for name in (*_EMBEDDABLE, "tokenFile"):
        if file := section.get(name):
            section[name] = str(folder / file)
    for name in _EMBEDDABLE:
        if embedded := section.pop(f"{name}-data", None):
            section[name] = memory_file(base64.b64decode(embedded), held)
