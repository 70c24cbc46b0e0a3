# SPDX-License-Identifier: Apache-2.0
"""The environment that exports and quantizes for OpenVINO: its Python, its packages and the commands run in it."""

import json
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from build_engines.stages.stage_list import Command
from trireme.base.project_files import CODE_ROOT

BUILD_PYTHON = CODE_ROOT / ".tools" / "build-cpu" / "bin" / "python"
PACKAGES = ("openvino", "openvino_genai", "openvino_tokenizers", "nncf", "optimum_intel", "torch", "transformers")
_ENVIRONMENT = {
    "PYTHONPATH": str(CODE_ROOT),
    "PYTHONHASHSEED": "0",
    "HF_HUB_OFFLINE": "1",
    "NNCF_CI": "1",  # sends no telemetry
}


def build_python() -> Path | None:
    """Return the Python that has nncf: our own, or that of `.tools/build-cpu`; None: neither has it."""
    if find_spec("nncf") is not None and find_spec("optimum") is not None:
        return Path(sys.executable)
    return BUILD_PYTHON if BUILD_PYTHON.is_file() else None


@cache
def package_versions() -> dict[str, str]:
    """Return the versions of `PACKAGES` in the environment that builds."""
    code = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    python = build_python()
    assert python is not None, "check() comes first"
    answer = subprocess.run([python, "-c", code, *PACKAGES], capture_output=True, text=True, check=True)
    versions: dict[str, str] = json.loads(answer.stdout)
    return versions


def build_command(module: str, argv: list[str]) -> Command:
    """Return the command that runs a module of `build_engines` in that environment."""
    return Command((str(build_python() or BUILD_PYTHON), "-m", f"build_engines.openvino.{module}", *argv), _ENVIRONMENT)
