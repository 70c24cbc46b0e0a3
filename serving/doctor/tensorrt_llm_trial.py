# SPDX-License-Identifier: Apache-2.0
"""A trial of Trireme's imports of TensorRT-LLM, in a process of its own; `tensorrt_llm_causes` explains the failures.

The import loads CUDA, Open MPI and torch: it can hang, or end the process that does it.
"""

import json
import subprocess
import sys
from typing import NamedTuple

TIMEOUT_S = 600.0  # the first import on a cold disk reads some gigabytes
_MARK = "trireme-import-trial "
_NUM_LINES = 12
_PROGRAM = f"""
import importlib, json, sys, traceback
for step in sys.argv[1:]:
    module, _, name = step.partition(":")
    error = None
    try:
        found = importlib.import_module(module)
        if name and not hasattr(found, name):
            raise ImportError(f"cannot import name {{name!r}} from {{module!r}} ({{found.__file__}})")
    except BaseException as exc:
        error = "".join(traceback.format_exception_only(exc)).strip()
        if exc.__cause__ or exc.__context__:
            error += " <- " + repr(exc.__cause__ or exc.__context__)
    print({_MARK!r} + json.dumps([step, error]), flush=True)
"""


class FailedImport(NamedTuple):
    """A module that is not imported, with the error text of Python, a library or this trial."""

    module: str
    text: str


def try_imports(steps: tuple[str, ...], *, timeout_s: float = TIMEOUT_S) -> list[FailedImport]:
    """Return the failures of `steps`, each tried whatever became of earlier ones; takes up to a minute on a GPU.

    Args:
        steps: modules, each with `:name` where a name in it is needed.
        timeout_s: the time for all steps together.
    """
    command = [sys.executable, "-c", _PROGRAM, *steps]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False, cwd="/"
        )
        output, rest, end = result.stdout, result.stderr, _how_it_ended(result.returncode)
    except subprocess.TimeoutExpired as exc:
        output, rest = _text(exc.stdout), _text(exc.stderr)
        end = f"the import did not end within {timeout_s:.0f} s"
    marked = [line.removeprefix(_MARK) for line in output.splitlines() if line.startswith(_MARK)]
    told: list[tuple[str, str | None]] = [(step, error) for step, error in map(json.loads, marked)]
    failed = [FailedImport(step.partition(":")[0], error) for step, error in told if error is not None]
    if len(told) < len(steps):  # it hung, or a library ended the process
        lines = [line for line in (output + rest).splitlines() if line.strip() and not line.startswith(_MARK)]
        failed.append(FailedImport(steps[len(told)].partition(":")[0], "\n".join([end, *lines[-_NUM_LINES:]])))
    return failed


def _how_it_ended(status: int) -> str:
    return f"the process ended by signal {-status}" if status < 0 else f"the process ended with status {status}"


def _text(output: str | bytes | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""
