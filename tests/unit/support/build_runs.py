# SPDX-License-Identifier: Apache-2.0
"""Runs of `trireme build` on the demo model, with stand-ins of upstream's tools; for several tests."""

import contextlib
import hashlib
import io
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from trtllm_tools import FakeTools

from ensemble_configs.releases.release_manifest import PROVENANCE_FILE
from trireme.base.project_files import CODE_ROOT
from trireme.commands import run_command

DEMO = CODE_ROOT / "examples/demo_model/target"
TRIREME = [sys.executable, "-m", "trireme", "build"]

TENSORRT = {
    "name": "demo-fp8", "model": "examples/demo_model", "backend": "tensorrt", "gpu": "h100", "format": "fp8",
    "kv_format": "fp8", "tp_size": 2, "max_input_len": 512, "max_seq_len": 1024, "max_num_tokens": 1024,
    "max_batch_size": 64, "calibration": {"file": "calibration.txt", "sha256": None, "num_samples": 4},
}  # fmt: skip
SAMPLES = "".join(f"sample number {number}\n" for number in range(6))


def write_recipe(folder: Path, **changes: object) -> Path:
    document = TENSORRT | changes
    calibration = document.get("calibration")
    if isinstance(calibration, dict) and "file" in calibration:
        sha256 = hashlib.sha256(SAMPLES.encode()).hexdigest()
        document["calibration"] = calibration | {"sha256": calibration.get("sha256") or sha256}
    (folder / "calibration.txt").write_text(SAMPLES)
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in document.items() if value is not None}))
    return path


def arguments(tools: FakeTools, recipe: Path | str, out: Path, *more: str, checkpoint: Path = DEMO) -> list[str]:
    return [*TRIREME, str(recipe), f"--checkpoint={checkpoint}", f"--out={out}", *tools.options, *more]


class Result(NamedTuple):
    """The end of a command: its exit code and its output."""

    returncode: int
    stdout: str
    stderr: str


def build(
    tools: FakeTools, recipe: Path | str, out: Path, *more: str, checkpoint: Path = DEMO, **environment: str
) -> Result:
    """Run the command in this process; only its tools are stand-ins."""
    argv = arguments(tools, recipe, out, *more, checkpoint=checkpoint)[len(TRIREME) :]
    said, shown = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (tools.environment() | environment).items():
            patch.setenv(name, value)
        patch.syspath_prepend(str(tools.site))
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(shown), pytest.raises(SystemExit) as ended:
            run_command("build", argv)
    return Result(int(ended.value.code or 0), said.getvalue(), shown.getvalue())


def built(result: Result) -> Path:
    assert result.returncode == 0, result.stderr
    return Path(result.stdout.split()[0])


def content(release: Path) -> dict[str, bytes]:
    files = (path for path in release.rglob("*") if path.is_file() and path.name != PROVENANCE_FILE)
    return {path.relative_to(release).as_posix(): path.read_bytes() for path in files}
