# SPDX-License-Identifier: Apache-2.0
"""The suite that every engine provider must pass, on the real vLLM for CPUs, in its own environment."""

from pathlib import Path

import pytest
from vllm_environment import TARGET, VENV, WHY_NOT, is_there, run_inside

from build_engines.prove.conformance_check import SUITE
from trireme.base.project_files import CODE_ROOT

ENGINE = {
    "provider": "vllm",
    "dir": TARGET,
    "venv_dir": VENV,
    "kv_block_tokens": 32,  # small, so that the suite can fill the cache
    "device": "cpu",
    "kv_cache_bytes": 2**26,
    "is_compiled": False,
    "num_threads": 1,
}
NUM_CASES = 100  # at least: of the suite's, with their parameters


@pytest.mark.slow
@pytest.mark.skipif(not is_there(), reason=WHY_NOT)
@pytest.mark.timeout(600)
def test_vllm_does_what_every_provider_must_do(tmp_path: Path) -> None:
    found = run_inside([CODE_ROOT / SUITE], tmp_path, engine_spec=ENGINE, timeout_s=580.0)
    assert not found.failed, "\n".join(f"{case.name}: {case.message}" for case in found.failed)
    assert found.num_passed > NUM_CASES
    assert found.num_skipped == 2  # of beams, which vLLM searches for outside of its core
