# SPDX-License-Identifier: Apache-2.0
"""The comparison of the installed `tensorrt_llm` with the facts that our code and its fake are made from."""

import sys
from pathlib import Path

import msgspec

from build_engines.prove.check import CheckFailed, LeftOut
from build_engines.prove.child_process import run_child
from build_engines.prove.proof import Drift
from build_engines.stages.stage_process import last_lines
from trireme.base.project_files import CODE_ROOT

SCRIPT = Path("scripts/trtllm_facts.py")
_TIMEOUT_S = 600.0
_MAX_LINES = 2000  # of a diff; a version far away differs in everything


def read_facts(work: Path, version: str, *, repository: Path = CODE_ROOT) -> Drift:
    """Read the facts in a process of its own, since the import loads CUDA; they lie in `work/facts`.

    Raises:
        LeftOut: this is no checkout of the repository.
        CheckFailed: the package cannot be imported or read.
    """
    script = repository / SCRIPT
    if not script.is_file():
        raise LeftOut(
            f"there is no {SCRIPT} beside this package; run `trireme prove` from a checkout of the repository"
        )
    diff, log = work / "facts" / "drift.diff", work / "logs" / "facts.log"
    diff.parent.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, script, "--write", diff.parent, "--diff", diff]
    status = run_child(argv, cwd=repository, log=log, timeout_s=_TIMEOUT_S)
    if not diff.is_file():  # written last
        raise CheckFailed(f"{SCRIPT.name} ended with status {status}", last_lines(log))
    lines = diff.read_text(encoding="utf-8").splitlines()
    if len(lines) > _MAX_LINES:
        lines = [*lines[:_MAX_LINES], f"... {len(lines) - _MAX_LINES} more lines"]
    return Drift(version=_version_read(diff.parent) or version, diff=lines)


def _version_read(folder: Path) -> str | None:
    for file in sorted(folder.glob("*.json")):
        found = msgspec.json.decode(file.read_bytes(), type=dict[str, object]).get("source_version")
        if isinstance(found, str):
            return found
    return None
