# SPDX-License-Identifier: Apache-2.0
"""File descriptors: a deployment's need is derived, the limit is raised where possible, and reported otherwise."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.engine.embedding_spec import EmbeddingModelSpec
from serving.supervisor.descriptor_limit import needed_descriptors

pytestmark = pytest.mark.slow

CODE = """
import resource, sys
from ensemble_configs.spec.deployment import DeploymentSpec
from serving.supervisor.descriptor_limit import raise_descriptor_limit
spec = DeploymentSpec.model_validate_json(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[3])))
try:
    print(raise_descriptor_limit(spec), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
except Exception as error:
    print(error)
"""


@pytest.fixture
def spec(tmp_path: Path) -> DeploymentSpec:
    engine = {"provider": "simulated", "max_seq_len": 64, "num_kv_blocks": 8, "max_num_seqs": 32}
    return DeploymentSpec.model_validate({"name": "x", "tokenizer": {"dir": tmp_path}, "engine": engine})


def limited(spec: DeploymentSpec, soft: int, hard: int) -> str:
    command = [sys.executable, "-c", CODE, spec.model_dump_json(), str(soft), str(hard)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_what_is_needed_grows_with_the_models_and_the_cores(
    spec: DeploymentSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert needed_descriptors(spec) == 64 + 2 * 2 + 4 * 5  # 70 were counted
    more = spec.model_copy(update={"models": (spec.model, spec.model)})
    assert needed_descriptors(more) == 64 + 2 * 2 + 4 * 10
    embedding = EmbeddingModelSpec(name="embed", dir=Path("/models/embed"), pooling="mean")
    assert needed_descriptors(spec.model_copy(update={"embedding_models": (embedding,)})) == 64 + 2 * 2 + 4 * 6
    monkeypatch.setattr(os, "cpu_count", lambda: 100)
    assert needed_descriptors(spec) == 64 + 2 * 100 + 4 * 5


def test_a_low_limit_is_raised_as_far_as_it_may_be(spec: DeploymentSpec) -> None:
    assert limited(spec, 64, 4096) == "None 4096\n"


def test_a_limit_that_may_not_be_raised_is_told_or_refused_by_its_name(spec: DeploymentSpec) -> None:
    needed = needed_descriptors(spec)
    told = limited(spec, 40, needed + 10)
    assert told.startswith(
        f"a process may have {needed + 10} file descriptors here (ulimit -n): enough for about 10 connections of "
        "clients, and the engines take 32 requests at once; raise the hard limit"
    )
    refused = limited(spec, 40, 64)
    assert f"may have 64 file descriptors here (ulimit -n), and tritonserver needs {needed} for this" in refused
    assert '[INVALID_SPEC field="ulimit -n" value=64]' in refused


def test_serve_refuses_before_anything_is_started(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    command = [sys.executable, "-m", "trireme", "serve"]
    result = subprocess.run(
        command, cwd=tmp_path, preexec_fn=limit, capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 2
    assert "a process may have 64 file descriptors here (ulimit -n), and tritonserver needs" in result.stderr
    assert list(tmp_path.iterdir()) == []
