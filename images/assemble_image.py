"""Runs in the Containerfile's build stage: fills one of out/runtime, out/dependencies and out/application.

Each of the three folders becomes one layer of an image, in this order: what changes more often comes later.
What is in them is a function of the base image, the locks and the source. Files are handled in sorted order,
.pyc files hold a hash instead of a time, and every file has the same time stamp.
"""

import ast
import compileall
import configparser
import os
import py_compile
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from image_contents import EPOCH, IMAGES, KERNEL_DIR, Contents
from image_sbom import write_sbom

BUILD: Final = Path("/build")
OUT: Final = BUILD / "out"
#: Where pip would put packages for this interpreter: on sys.path without a variable that says so.
PACKAGES: Final = Path(site.getsitepackages()[0])
PYTHON: Final = Path(sys.executable).resolve()
#: Parts of the standard library that no server needs: tests, installers, compilers' files, user interfaces.
LEFT_OUT: Final = frozenset(
    [
        "__pycache__",
        "config",
        "curses",
        "dbm",
        "dist-packages",
        "distutils",
        "ensurepip",
        "idlelib",
        "lib2to3",
        "pydoc_data",
        "site-packages",
        "sqlite3",
        "test",
        "tkinter",
        "turtledemo",
        "turtle.py",
        "EXTERNALLY-MANAGED",
        "venv",
    ]
)
LEFT_OUT_EXTENSIONS: Final = re.compile(
    r"_(test\w*|xxtestfuzz|ctypes_test|tkinter|sqlite3|curses\w*|dbm|gdbm|crypt)\.|(readline|nis|xx\w*)\."
)


def runtime() -> None:
    """Copy the interpreter, the standard library, shared libraries, certificate authorities; try them."""
    out = OUT / "runtime"
    library = Path(sysconfig.get_path("stdlib"))
    _copy(PYTHON, out)
    (out / "usr/bin").mkdir(parents=True, exist_ok=True)
    for name in ("python3", "python"):
        (out / "usr/bin" / name).symlink_to(PYTHON)
    shutil.copytree(library, _inside(out, library), ignore=_left_out)
    needed = [PYTHON, *sorted(_inside(out, library).rglob("*.so"))]
    taken = _shared_libraries(needed, out)
    for file in ("/etc/ssl/certs/ca-certificates.crt", "/etc/os-release"):
        _copy(Path(file), out, resolve=False)
    (out / "etc/nsswitch.conf").write_text("hosts: files dns\n")
    (out / "tmp").mkdir()
    (out / "tmp").chmod(0o1777)
    _package_records([PYTHON, library, Path("/etc/ssl/certs/ca-certificates.crt"), *taken], out)
    _compile(_inside(out, library), out)
    _settle(out)
    # A library that is missing shows here, not in a cluster.
    modules = "asyncio, bz2, ctypes, decimal, hashlib, lzma, ssl, uuid, zlib"
    _run("chroot", str(out), str(PYTHON), "-BIc", f"import {modules}; ssl.create_default_context()")


def dependencies() -> None:
    """Install what the image's lock names, each file checked against the lock's hashes. No C is compiled."""
    out = OUT / "dependencies"
    image = _image()
    packages = _inside(out, PACKAGES)
    _pip_install(BUILD / "locks/build.lock", BUILD / "tools")
    _pip_install(BUILD / f"locks/{os.environ['IMAGE']}.lock", packages)
    # Commands of libraries are no part of an image.
    shutil.rmtree(packages / "bin", ignore_errors=True)
    for path in (path for pattern in image.left_out for path in packages.glob(pattern)):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    _plain(packages)
    taken = _shared_libraries(sorted(packages.rglob("*.so*")), out, beside=OUT / "runtime")
    _package_records(taken, out)
    _compile(packages, out)
    _settle(out)
    print(f"{image.name}: {len(list(packages.glob('*.dist-info')))} distributions")


def application() -> None:
    """Build Headroom's wheel; unpack the image's part of it; write its commands and its SBOM."""
    out = OUT / "application"
    image = _image()
    packages = _inside(out, PACKAGES)
    _run(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-d",
        str(BUILD / "wheel"),
        cwd=BUILD / "source",
    )
    (wheel,) = (BUILD / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (metadata,) = packages.glob("*.dist-info")
    (metadata / "RECORD").unlink()  # it names the files that this image leaves out
    entry_points = metadata / "entry_points.txt"
    scripts = entry_points.read_text()
    targets = {name: _command_target(scripts, name) for name in (image.command, *image.also)}
    kept = imported_packages(packages, targets[image.command][0].partition(".")[0])
    for folder in packages.iterdir():
        if folder != metadata and folder.name not in kept:
            shutil.rmtree(folder)
    entry_points.write_text(_own_entry_points(scripts, targets, kept))
    _plain(packages)
    for name, (module, function) in targets.items():
        _executable(
            out / "usr/local/bin" / name,
            f"#!{PYTHON}\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n",
        )
    _compile(packages, out)
    if image.prepare:
        _prepare(image, out)
    sbom = out / "usr/share/sbom" / f"{image.name}.cdx.json"
    sbom.parent.mkdir(parents=True)
    write_sbom(sbom, image.name, [OUT / "runtime", OUT / "dependencies", out], PACKAGES.relative_to("/"))
    _settle(out)


def imported_packages(folder: Path, root: str) -> set[str]:
    """Return the packages in a folder that one of them imports, directly or not, itself included."""
    found, todo = set[str](), {root}
    while todo:
        package = todo.pop()
        found.add(package)
        for file in (folder / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_bytes())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                    names.append(node.module)
                todo |= {top for name in names if (folder / (top := name.partition(".")[0])).is_dir()} - found
    return found


def _image() -> Contents:
    return IMAGES[os.environ["IMAGE"]]


def _inside(out: Path, path: Path) -> Path:
    """Return where a path of the image lies while it is assembled."""
    return out / path.relative_to("/")


def _copy(path: Path, out: Path, *, resolve: bool = True) -> Path:
    """Copy a file's content to the same path in the image. `resolve`: its folder by its real path."""
    path = path.parent.resolve() / path.name if resolve else path
    target = _inside(out, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, target)
    return path


def _left_out(folder: str, names: list[str]) -> set[str]:
    extensions = Path(folder).name == "lib-dynload"
    return {
        name
        for name in names
        if name in LEFT_OUT
        or name.startswith("config-")
        or name.endswith(".pyc")
        or (extensions and LEFT_OUT_EXTENSIONS.match(name))
    }


def _shared_libraries(programs: Iterable[Path], out: Path, *, beside: Path | None = None) -> list[Path]:
    """Copy the base's libraries that these programs load and that no layer below has; return their paths."""
    found = {path for program in programs for path in _loads(program)}
    taken = []
    for path in sorted(found):
        real = path.parent.resolve() / path.name
        if path.is_relative_to(OUT) or (beside is not None and _inside(beside, real).exists()):
            continue
        taken.append(_copy(path, out))
        top = Path("/", path.parts[1])
        if top.is_symlink() and beside is None and not _inside(out, top).is_symlink():
            _inside(out, top).symlink_to(top.readlink())
    return taken


def _loads(program: Path) -> Iterator[Path]:
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False)
    for line in listed.stdout.splitlines():
        if "not found" in line:
            if (program.parent / line.split()[0]).exists():
                continue  # a wheel's own library, which is loaded before by what needs both
            raise SystemExit(f"{program} needs {line.split()[0]}, which the base image does not have")
        path = line.partition("=>")[2] or line
        if (path := path.split()[0]).startswith("/"):
            yield Path(path)


def _package_records(paths: Iterable[Path], out: Path) -> None:
    """Note which Debian packages the files are from, with their licences: scanners read status.d."""
    owners = set()
    for path in paths:
        # A package may know its files by the path before /lib became a link to /usr/lib.
        for spelling in (path, Path("/", path.relative_to("/usr")) if path.is_relative_to("/usr") else path):
            asked = subprocess.run(["dpkg", "-S", str(spelling)], capture_output=True, text=True, check=False)
            if asked.returncode == 0:
                owners |= {line.partition(": ")[0] for line in asked.stdout.splitlines() if ", " not in line}
                break
    owners |= {"ca-certificates"} if any("ca-certificates" in str(path) for path in paths) else set()
    for owner in sorted(owners):
        name = owner.partition(":")[0]
        record = out / "var/lib/dpkg/status.d" / name
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(_output("dpkg-query", "-s", owner))
        licence = Path("/usr/share/doc", name, "copyright")
        if licence.exists():
            _copy(licence, out, resolve=False)


def _pip_install(lock: Path, target: Path) -> None:
    arguments = ["--quiet", "--require-hashes", "--only-binary=:all:", "--no-deps", "--no-compile"]
    _run(sys.executable, "-m", "pip", "install", *arguments, "--target", str(target), "-r", str(lock))


def _command_target(entry_points: str, command: str) -> tuple[str, str]:
    match = re.search(rf"^{re.escape(command)} *= *([\w.]+):(\w+)$", entry_points, re.MULTILINE)
    if match is None:
        raise SystemExit(f"pyproject.toml has no script {command}")
    return match[1], match[2]


def _own_entry_points(text: str, commands: Collection[str], packages: Collection[str]) -> str:
    """Return the entry points into these packages; of the scripts only the commands."""
    given = configparser.ConfigParser(delimiters="=")
    given.optionxform = str  # type: ignore[assignment,method-assign]
    given.read_string(text)
    kept = []
    for section in given.sections():
        own = [
            f"{name} = {target}\n"
            for name, target in given[section].items()
            if target.partition(".")[0] in packages and (section != "console_scripts" or name in commands)
        ]
        kept += [f"[{section}]\n", *own] if own else []
    return "".join(kept)


def _prepare(image: Contents, out: Path) -> None:
    """Run the image's statements by its own modules; KERNEL_DIR is the one of the image."""
    folder = _inside(out, Path(KERNEL_DIR))
    folder.mkdir(parents=True)
    paths = [str(_inside(part, PACKAGES)) for part in (out, OUT / "dependencies")]
    environment = {
        **os.environ,
        **{name: value.replace(KERNEL_DIR, str(folder)) for name, value in image.environment.items()},
        "PYTHONPATH": os.pathsep.join(paths),
    }
    subprocess.run([str(PYTHON), "-c", image.prepare], env=environment, check=True)
    if not any(folder.iterdir()):
        raise SystemExit(f"{image.name}: nothing was prepared")
    _plain(folder)


def _executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def _compile(folder: Path, out: Path) -> None:
    """Compile all modules, in sorted order. Unchecked: the files of an image do not change under it."""
    whole = compileall.compile_dir(
        folder,
        maxlevels=100,
        quiet=1,
        stripdir=str(out),
        prependdir="/",
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    if not whole:
        print(f"some modules under {folder} do not compile; they are compiled at every start if used")


def _plain(folder: Path) -> None:
    """Take the execute bits that archives give to files at random."""
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _settle(out: Path) -> None:
    for path in sorted(out.rglob("*"), reverse=True):
        os.utime(path, (EPOCH, EPOCH), follow_symlinks=False)
    os.utime(out, (EPOCH, EPOCH))


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _run(*command: str, cwd: Path | None = None) -> None:
    if (code := subprocess.run(command, cwd=cwd, check=False).returncode) != 0:
        raise SystemExit(f"exit status {code}: {' '.join(command)}")


if __name__ == "__main__":
    os.umask(0o022)
    {"runtime": runtime, "dependencies": dependencies, "application": application}[sys.argv[1]]()
