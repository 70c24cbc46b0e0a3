# SPDX-License-Identifier: Apache-2.0
"""Tests of the provider on vLLM's real CPU build: those in `inner`, run in one process of its environment."""

from pathlib import Path

import pytest
from vllm_environment import WHY_NOT, is_there, run_inside

# Of vLLM 0.32 no engine loads in a process that has drafted n-grams, by numba.
LAST = "test_vllm_drafts"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not is_there(), reason=WHY_NOT)]


@pytest.mark.timeout(600)
def test_adapters_and_drafts_on_the_real_engine(tmp_path: Path) -> None:
    files = sorted((Path(__file__).parent / "inner").glob("test_*.py"), key=lambda file: (file.stem == LAST, file))
    found = run_inside(files, tmp_path, timeout_s=560.0)
    assert not found.failed, "\n".join(f"{case.name}: {case.message}" for case in found.failed)
    assert found.num_skipped == 0
    assert found.num_passed >= len(files) > 0
