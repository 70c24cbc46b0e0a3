# SPDX-License-Identifier: Apache-2.0
"""`trireme prove --engine vllm`: its checks on vLLM's real CPU build, and what it refuses on a fake GPU machine."""

import contextlib
import json
from pathlib import Path

import pytest
from gpu_container import write_gpu_container
from test_prove import Proved
from vllm_environment import VENV, WHY_NOT, is_there

from build_engines.checkpoint.gpus import gpu_named
from build_engines.prove.check import CheckFailed, run_check
from build_engines.prove.proof import GpuState, Proof, ProofMachine
from build_engines.prove.proof_model import describe_model, find_checkpoint
from build_engines.prove.vllm_proving import VllmProving

NEEDED = pytest.mark.skipif(not is_there(), reason=WHY_NOT)


def proving(work: Path, *, device: str = "cpu", venv_dir: Path | None = VENV) -> VllmProving:
    checkpoint = find_checkpoint("demo")
    proof = Proof(
        date="2026-12-01T00:00:00+00:00",
        commit=None,
        gpu="h100",
        engine="vllm",
        machine=ProofMachine(gpus=[GpuState(name="NVIDIA H100", sm=90)], versions={}),
        model=describe_model(checkpoint),
    )
    return VllmProving(
        proof, checkpoint, gpu_named("h100"), work, 16, 4, (1,), 240.0, venv_dir=venv_dir, device=device
    )  # fmt: skip


def test_without_a_gpu_it_says_what_it_would_do(tmp_path: Path) -> None:
    container = write_gpu_container(tmp_path / "container")
    proved = Proved(container, tmp_path, "--engine", "vllm", "--json", CUDA_VISIBLE_DEVICES="")
    assert proved.status == 2
    lines = json.loads(proved.stdout)["would_do"]
    assert lines[0] == "facts: compare the version of the installed vllm with those that provider vllm was written for"
    assert lines[2] == "conformance: run the suite that every engine must pass on vllm"


def test_without_vllm_every_check_but_the_build_fails_with_what_to_do(tmp_path: Path) -> None:
    container = write_gpu_container(tmp_path / "container")
    proved = Proved(container, tmp_path, "--engine", "vllm", "--steps", "facts,build,bench")
    assert proved.status == 1
    assert proved.steps == {"facts": "failed", "build": "passed", "bench vllm": "failed"}
    assert "set engine.venv_dir to a virtual environment that holds vLLM" in proved.reason("facts")
    assert next(proved.out.iterdir()).name.startswith("h100_vllm_")
    assert proved.document["built"]["recipe"]["backend"] == "vllm"


@NEEDED
def test_a_build_for_cpus_proves_nothing_of_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="is a build for CPUs; name one for GPUs with --vllm-venv"):
        proving(tmp_path, device="gpu")._facts()


@NEEDED
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_its_build_and_its_measurement_run_on_the_real_engine(tmp_path: Path) -> None:
    found = proving(tmp_path)
    for check in found.checks(["facts", "build", "bench"]):
        record = run_check(check, lambda _: contextlib.nullcontext())
        assert record.status == "passed", (record.reason, record.last_lines)
    assert found.proof.machine.versions["vllm"].startswith("0.")
    (row,) = found.proof.bench
    assert (row.provider, row.path, row.concurrency) == ("vllm", "engine", 1)
    assert row.measured.tokens_per_s > 0


@NEEDED
@pytest.mark.soak
@pytest.mark.timeout(2400)
def test_its_suite_runs_on_the_real_engine(tmp_path: Path) -> None:
    found = proving(tmp_path)
    found.timeout_s = 1800
    for check in found.checks(["facts", "conformance"]):
        record = run_check(check, lambda _: contextlib.nullcontext())
        assert record.status == "passed", (record.reason, record.last_lines)
    assert found.proof.conformance["vllm"].num_passed > 20
