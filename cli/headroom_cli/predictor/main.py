"""`headroom predictor status|export|import|flush`; also `kubectl headroom predictor`."""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, TypeAlias

from headroom_cli import picker_pages
from headroom_cli.picker_pages import Object, PickerPageError
from headroom_cli.predictor import tables, trainer_link

Groups: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

#: Longest export that is read, bytes: what a trainer takes, and its frames.
_MAX_EXPORT: Final = 260 << 20

_STATUS: Final = (
    "Show whether a pool's picker routes by predicted latency: the model, its errors, the gain over the "
    "heuristic, the samples, and the trainer's state. Reads the pod through the API server, which takes the "
    "right to get pods/proxy."
)
_EXPORT: Final = (
    "Write all that a pool's trainer has learned, bundles of models and samples, to a file. Takes the right "
    "to create pods/portforward."
)
_IMPORT: Final = (
    "Give an export to a pool's trainer: its newest models become the pool's seed, which routes until the "
    "trainer has learned from the pool's own requests. Takes the right to create pods/portforward."
)
_FLUSH: Final = (
    "Have a pool's trainer forget its samples, as after a change of models or servers; the models stay until "
    "it has learned anew. Takes the right to create pods/portforward."
)


def add_commands(groups: Groups) -> None:
    """Add the group `predictor`."""
    group = groups.add_parser(
        "predictor",
        help="what a pool predicts latency by",
        description="Show, export, import or flush what a pool's latency predictor has learned.",
    )
    commands = group.add_subparsers(required=True, metavar="COMMAND")
    for name, text, run in (
        ("status", _STATUS, status),
        ("export", _EXPORT, export),
        ("import", _IMPORT, import_),
        ("flush", _FLUSH, flush),
    ):
        command = commands.add_parser(name, help=text.partition(":")[0].partition(",")[0], description=text)
        add = command.add_argument
        add("pool", metavar="POOL", nargs="?", default="", help="the InferencePool")
        if name in {"export", "import"}:
            add("-f", "--file", required=True, type=Path, metavar="FILE", help="the export")
        if name == "export":
            add("--force", action="store_true", help="replace a file that exists")
        add("-o", "--output", choices=("table", "json"), default="table")
        picker_pages.add_flags(command, address=name == "status")
        if name != "status":
            add("--trainer", default="", metavar="HOST:PORT", help="a trainer, in place of the cluster")
        command.set_defaults(run=run)


def status(given: argparse.Namespace) -> int:
    """Print the status of each picker; return 0. Raises PickerPageError."""
    found = []
    for picker, trainer in picker_pages.pickers_beside(given, trainer_link.STATUS_PORT):
        router = picker.page("/debug/state", "router")["router"]
        said: Object = router.get("latencyPrediction") or {}
        found.append((picker.name, said, None if trainer is None else trainer.page("/status", "state")))
    if given.output == "json":
        print(json.dumps([{"picker": name, "prediction": p, "trainer": t} for name, p, t in found], indent=2))
    else:
        try:
            print("\n\n\n".join(tables.status(*each, time.time()) for each in found))
        except (KeyError, TypeError) as error:
            raise PickerPageError(
                f"a page lacks {error}; are this command and the picker of one version?"
            ) from error
    return 0


def export(given: argparse.Namespace) -> int:
    """Write the export; return 0. Raises PickerPageError."""
    file: Path = given.file
    if file.exists() and not given.force:
        raise PickerPageError(f"{file} exists; give --force to replace it")
    with trainer_link.address_of(given) as address:
        messages = trainer_link.pull(address)
    size = _write(file, messages)
    _say(given, {"file": str(file), "bytes": size}, f"{file}: {size} bytes, in {len(messages)} messages.")
    return 0


def import_(given: argparse.Namespace) -> int:
    """Give the export to the trainer; return 0. Raises PickerPageError."""
    messages = _read(given.file)
    with trainer_link.address_of(given) as address:
        answer = trainer_link.push(address, messages)
    for error in answer["errors"]:
        sys.stderr.write(f"headroom: left out: {error}\n")
    _say(given, answer, f"{answer['bundles']} model and {answer['samples']} samples were taken.")
    return 0


def flush(given: argparse.Namespace) -> int:
    """Flush the trainer; return 0. Raises PickerPageError."""
    with trainer_link.address_of(given) as address:
        samples = int(trainer_link.status(address)["samples"])
        trainer_link.flush(address)
    _say(given, {"samples": samples}, f"{samples} samples were forgotten; the models stay.")
    return 0


def _say(given: argparse.Namespace, answer: Object, text: str) -> None:
    print(json.dumps(answer, indent=2) if given.output == "json" else text)


def _write(file: Path, messages: list[bytes]) -> int:
    """Write the export beside the file first, so that a failure leaves no half of it; return its size."""
    from latency_predictor.training.transfer import pack

    content = pack(messages)
    try:
        handle, beside = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(handle, "wb") as opened:
                opened.write(content)
            Path(beside).replace(file)
        except BaseException:
            Path(beside).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise PickerPageError(f"{file} cannot be written: {error.strerror}") from None
    return len(content)


def _read(file: Path) -> list[bytes]:
    try:
        from latency_contract.errors import ContractError
        from latency_predictor.training.transfer import unpack
    except ModuleNotFoundError as missing:
        raise PickerPageError(
            f"this command needs {missing.name}: pip install 'headroom-operator[predictor]'"
        ) from None
    try:
        if file.stat().st_size > _MAX_EXPORT:
            raise PickerPageError(f"{file} is no export: it is larger than {_MAX_EXPORT >> 20} MiB")
        return list(unpack(file.read_bytes()))
    except OSError as error:
        raise PickerPageError(f"{file} cannot be read: {error.strerror}") from None
    except ContractError as error:
        raise PickerPageError(f"{file}: {error}") from None
