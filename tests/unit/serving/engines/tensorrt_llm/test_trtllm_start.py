# SPDX-License-Identifier: Apache-2.0
"""Tests of how the process of a TensorRT-LLM engine starts, by its spec, the environment and what is installed."""

from pathlib import Path

import pytest
from simulated_release import TOKENIZER

from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec
from ensemble_configs.spec.release_spec import ReleaseSpec, TokenizerSpec
from serving.doctor.release_check import launcher_findings
from serving.engines.providers import start_of_release
from serving.engines.seam.engine_start import EngineStart
from serving.engines.tensorrt_llm.trtllm_start import (
    SINGLE_PROCESS,
    plan_engine_start,
    rank_environment,
    refuse_second_llm,
)
from trireme.base.errors import SpecError

OUTSIDE = {"TLLM_SPAWN_PROXY_PROCESS": "1"}


def engine(tp_size: int = 1, **settings: object) -> PyTorchEngineSpec:
    data = {"provider": "pytorch", "dir": Path("m"), "tp_size": tp_size} | settings
    return PyTorchEngineSpec.model_validate(data)


def find(name: str) -> str | None:
    return f"/opt/{name}"


def find_nothing(_name: str) -> None:
    return None


@pytest.mark.parametrize(
    ("spec", "environ", "prefix"),
    [
        (engine(1), {}, ()),
        (engine(1, launcher="mpirun"), {}, ("/opt/mpirun", "--allow-run-as-root", "-n", "1")),
        (engine(8), {}, ("/opt/mpirun", "--allow-run-as-root", "-n", "1")),
        (engine(2, pp_size=2), {}, ("/opt/mpirun", "--allow-run-as-root", "-n", "1")),
        (engine(8, launcher="none"), {}, ()),
        (engine(8, pp_size=2, gpus_per_node=8), OUTSIDE, ()),
    ],
    ids=["one rank", "one rank, wanted", "tensor parallel", "pipeline parallel", "not wanted", "started outside"],
)
def test_several_ranks_start_below_mpirun_unless_they_were_started_outside(
    spec: PyTorchEngineSpec, environ: dict[str, str], prefix: tuple[str, ...]
) -> None:
    start = plan_engine_start(spec, environ, find)
    assert start.prefix == prefix
    assert start.is_guarded


def test_only_one_rank_without_a_wish_runs_in_the_engines_process() -> None:
    specs = (engine(1), engine(1, launcher="mpirun"), engine(1, launcher="none"), engine(2))
    assert [rank_environment(spec)[SINGLE_PROCESS] for spec in specs] == ["1", "0", "0", "0"]


def test_an_mpi_job_begins_in_no_other_jobs_environment_and_keeps_the_users_settings() -> None:
    environ = {"OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0", "SLURM_NTASKS": "1", "OMPI_MCA_btl": "tcp", "HOME": "/h"}
    found = plan_engine_start(engine(2), environ, find).environment_from(environ)
    assert found["OMPI_MCA_btl"] == "tcp"
    assert found["HOME"] == "/h"
    assert not found.keys() & {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_NTASKS"}
    assert found["PRTE_MCA_hwloc_default_binding_policy"] == found["OMPI_MCA_hwloc_base_binding_policy"] == "none"


def test_ranks_that_were_started_outside_keep_their_environment() -> None:
    environ = OUTSIDE | {"SLURM_NTASKS": "16"}
    assert plan_engine_start(engine(16), environ, find_nothing).environment_from(environ) == environ


def test_more_ranks_have_more_time_to_end_but_not_for_ever() -> None:
    times = [plan_engine_start(engine(size), {}, find).close_timeout_s for size in (1, 8, 512)]
    assert times == [20.0, 55.0, 120.0]


def test_a_missing_launcher_is_refused_by_name_with_the_cure() -> None:
    with pytest.raises(SpecError, match="mpirun, which is not on PATH; run this in NVIDIA's container") as caught:
        plan_engine_start(engine(2), {}, find_nothing)
    assert caught.value.facts == {"field": "engine.launcher", "value": "auto"}
    plan_engine_start(engine(1), {}, find_nothing)  # needs none


def test_ranks_on_other_nodes_are_refused_outside_of_a_group() -> None:
    with pytest.raises(SpecError, match=r"16 ranks take 2 nodes of engine.gpus_per_node 8; start .* trireme group"):
        plan_engine_start(engine(8, pp_size=2, gpus_per_node=8), {}, find)


def test_one_launch_from_outside_serves_one_llm() -> None:
    releases = [release(engine(4)), release(engine(4))]
    with pytest.raises(SpecError, match="trtllm-llmapi-launch has started serve one LLM, and 2 are wanted"):
        refuse_second_llm(releases, OUTSIDE)
    refuse_second_llm(releases[:1], OUTSIDE)
    refuse_second_llm(releases, {})


def release(spec: PyTorchEngineSpec | SimulatedEngineSpec, **more: object) -> ReleaseSpec:
    deployment = DeploymentSpec.of_one(name="test", tokenizer=TokenizerSpec(dir=TOKENIZER), engine=spec, **more)
    return deployment.releases[0]


def test_other_engines_start_as_they_are() -> None:
    assert start_of_release(release(SimulatedEngineSpec(provider="simulated"))) == EngineStart()


def test_a_doctor_finds_a_missing_launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (finding,) = launcher_findings(release(engine(2)))
    assert (finding.check, finding.wanted) == ("launcher", "mpirun on PATH")
    assert "apt-get install openmpi-bin" in finding.next_step
    assert launcher_findings(release(engine(1))) == []
