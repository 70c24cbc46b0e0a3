# SPDX-License-Identifier: Apache-2.0
"""Where this machine's `tritonserver` is, and the environment that it and its Python stubs need.

On PATH, as in the NGC container, or the one that `make setup` put into `.tools/triton`.
"""

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from ensemble_configs.errors import SpecError
from serving.returned_memory import with_returned_memory

PROJECT_ROOT = Path(__file__).resolve().parent.parent.parent
DEFAULT_BACKENDS = Path("/opt/tritonserver/backends")
RECORD = PROJECT_ROOT / ".tools" / "triton" / "installation.json"


@dataclass(frozen=True)
class TritonInstallation:
    """A server that can be started."""

    tritonserver: Path
    backend_directory: Path | None  # None: the server's own default, DEFAULT_BACKENDS
    library_path: tuple[Path, ...]

    def environment(self, *, run_dir_variable: str, run_dir: Path) -> dict[str, str]:
        """The server's environment: this interpreter first on PATH, this project importable, the libraries findable.

        The server's own Python modules come before all others: 2.71 reads PYTHONPATH before it looks for them, and
        somebody else's `triton_python_backend_utils` there would take the place of its own (2.51 ignores PYTHONPATH).
        """
        env = with_returned_memory(os.environ)
        env["PATH"] = os.pathsep.join([str(Path(sys.prefix) / "bin"), env.get("PATH", os.defpath)])
        own = (self.backend_directory or DEFAULT_BACKENDS) / "python"
        modules = [str(own) if own.is_dir() else "", str(PROJECT_ROOT), env.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(filter(None, modules))
        env["PYTHONNOUSERSITE"] = "1"
        libraries = [*map(str, self.library_path), env.get("LD_LIBRARY_PATH", "")]
        env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
        env[run_dir_variable] = str(run_dir)
        return env


def find_triton(record: Path = RECORD) -> TritonInstallation:
    """The server on PATH, else the one that `make setup` installed.

    Raises:
        SpecError: neither, or one that cannot run with this interpreter.
    """
    if on_path := shutil.which("tritonserver"):
        return TritonInstallation(Path(on_path), None, ())
    return recorded_triton(record)


def recorded_triton(record: Path = RECORD) -> TritonInstallation:
    """Return the server that `make setup` installed, whatever is on PATH.

    Raises:
        SpecError: there is none, or one that cannot run with this interpreter.
    """
    if not record.is_file():
        raise SpecError("no `tritonserver` on PATH and none in .tools/triton; install it with `make setup`")
    facts = json.loads(record.read_text(encoding="utf-8"))
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if facts["python_version"] != running:
        raise SpecError(
            f"this is Python {running}, but .tools/triton was set up for Python {facts['python_version']}; "
            "run `make setup` with this Python, or use .venv/bin/trireme"
        )
    root = record.parent.parent.parent
    return TritonInstallation(
        tritonserver=root / facts["tritonserver"],
        backend_directory=root / facts["backend_directory"],
        library_path=tuple(root / path for path in facts["library_path"]),
    )
