# SPDX-License-Identifier: Apache-2.0
"""The place of this machine's `tritonserver`, and the environment that it and its Python stubs need.

The server is on PATH, as in the NGC container; else it is the one that `make setup` put into `.tools/triton` of a
checkout, or that an installed Trireme fetched into the user's cache, once.
"""

import fcntl
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from serving.process.returned_memory import with_returned_memory
from trireme.base.errors import SpecError
from trireme.base.project_files import CODE_ROOT, IS_CHECKOUT, project_file
from trireme.installing import triton_server
from trireme.installing.commands import SetupError, describe_os_error

DEFAULT_BACKENDS = Path("/opt/tritonserver/backends")
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def _cache() -> Path:
    """Return the folder for the files that an installed Trireme fetches for this Python."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "trireme" / f"python{_PYTHON}"


TOOLS_ROOT = CODE_ROOT if IS_CHECKOUT else _cache()
RECORD = triton_server.installation_file(TOOLS_ROOT)


@dataclass(frozen=True)
class TritonInstallation:
    """A server that can be started."""

    tritonserver: Path
    backend_directory: Path | None  # None: the server's own default, DEFAULT_BACKENDS
    library_path: tuple[Path, ...]

    def environment(self, *, run_dir_variable: str, run_dir: Path) -> dict[str, str]:
        """Return the server's environment: this interpreter first on PATH, this project and the libraries findable.

        The server's own Python modules come before all others: 2.71 reads PYTHONPATH before it looks for them, and
        somebody else's `triton_python_backend_utils` there would take the place of its own (2.51 ignores PYTHONPATH).
        """
        env = with_returned_memory(os.environ)
        env["PATH"] = os.pathsep.join([str(Path(sys.prefix) / "bin"), env.get("PATH", os.defpath)])
        own = (self.backend_directory or DEFAULT_BACKENDS) / "python"
        modules = [str(own) if own.is_dir() else "", str(CODE_ROOT), env.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(filter(None, modules))
        env["PYTHONNOUSERSITE"] = "1"
        libraries = [*map(str, self.library_path), env.get("LD_LIBRARY_PATH", "")]
        env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
        env[run_dir_variable] = str(run_dir)
        return env


def fetch_triton() -> None:
    """Install the server into the user's cache, with progress, where it is neither there nor on PATH.

    In a checkout this is left to `make setup`.

    Raises:
        SpecError: the server cannot be fetched, or the cache cannot be written.
    """
    lock = project_file(triton_server.LOCK)
    if IS_CHECKOUT or shutil.which("tritonserver") or _is_fetched(lock):
        return
    try:
        TOOLS_ROOT.mkdir(parents=True, exist_ok=True)
        with (TOOLS_ROOT / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # another start may be fetching it
            if not _is_fetched(lock):
                triton_server.prepare(TOOLS_ROOT, lock=lock, python=Path(sys.executable), shows_output=True)
    except OSError as exc:
        raise SpecError(
            f"Triton cannot be put into {TOOLS_ROOT}: {describe_os_error(exc)}; set XDG_CACHE_HOME to a folder with "
            "1 GB free, or put `tritonserver` on PATH",
            field="XDG_CACHE_HOME",
            value=str(TOOLS_ROOT),
        ) from exc
    except SetupError as exc:
        raise SpecError(f"Triton cannot be fetched: {exc}; or put `tritonserver` on PATH") from exc


def _is_fetched(lock: Path) -> bool:
    return triton_server.is_current(TOOLS_ROOT, lock=lock, python_version=_PYTHON)


def find_triton(record: Path = RECORD) -> TritonInstallation:
    """Return the server on PATH, else the server that `make setup` or `fetch_triton` installed.

    Raises:
        SpecError: there is neither, or the server cannot run with this interpreter.
    """
    if on_path := shutil.which("tritonserver"):
        return TritonInstallation(Path(on_path), None, ())
    return recorded_triton(record)


def recorded_triton(record: Path = RECORD) -> TritonInstallation:
    """Return the server that `make setup` or `fetch_triton` installed, whatever is on PATH.

    Raises:
        SpecError: there is none, or it cannot run with this interpreter.
    """
    if not record.is_file():
        how = "install it with `make setup`" if IS_CHECKOUT else "`trireme serve` fetches it"
        raise SpecError(f"no `tritonserver` on PATH and none in {record.parent}; {how}")
    facts = json.loads(record.read_text(encoding="utf-8"))
    if facts["python_version"] != _PYTHON:
        raise SpecError(
            f"this is Python {_PYTHON}, but .tools/triton was set up for Python {facts['python_version']}; "
            "run `make setup` with this Python, or use .venv/bin/trireme"
        )
    root = record.parent.parent.parent
    return TritonInstallation(
        tritonserver=root / facts["tritonserver"],
        backend_directory=root / facts["backend_directory"],
        library_path=tuple(root / path for path in facts["library_path"]),
    )
