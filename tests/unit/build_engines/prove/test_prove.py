# SPDX-License-Identifier: Apache-2.0
"""`trireme prove` with a fake GPU machine: from end to end, and each check when it fails."""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_here import run_here
from gpu_container import GpuContainer, write_gpu_container

from build_engines.checkpoint.gpus import gpu_named, gpu_of_driver, gpus
from build_engines.planner.roofline.serving_limit import ServingLimit
from build_engines.planner.roofline.steady_state import Limits
from build_engines.prove import proving
from build_engines.prove.check import CheckFailed, LeftOut, run_check
from build_engines.prove.child_process import run_child
from build_engines.prove.closed_loop import ClosedLoop, SteadyLoad, Turn
from build_engines.prove.conformance_check import run_suite
from build_engines.prove.facts_check import read_facts
from build_engines.prove.prediction import predict, ratio
from build_engines.prove.proof import (
    Conformance,
    FailedCase,
    Figures,
    Proof,
    ProofMachine,
    ProofModel,
    load_proofs,
    write_proof,
)
from build_engines.prove.proof_model import find_checkpoint
from build_engines.prove.proving import Proving
from trireme.base.errors import SpecError

TRIREME = [sys.executable, "-m", "trireme", "prove"]
QUICK = ["--isl", "16", "--osl", "4", "--concurrency", "1,2"]
SOME_CASES = "-k 'greedy_means or beams_come or info_tells or short_request'"
MS = 1_000_000


class Proved:
    """The results of a run of the command."""

    def __init__(self, container: GpuContainer, folder: Path, *options: str, **environment: str) -> None:
        self.out = folder / "out"
        result = subprocess.run(
            [*TRIREME, "--out", str(self.out), *container.tools.options[:1], *QUICK, *options],
            env=container.environment(XDG_CACHE_HOME=str(folder / "cache"), PYTEST_ADDOPTS=SOME_CASES, **environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        self.status, self.stdout, self.stderr = result.returncode, result.stdout, result.stderr

    @property
    def document(self) -> dict[str, Any]:
        (file,) = self.out.iterdir()  # no half-written one beside it
        document: dict[str, Any] = json.loads(file.read_text())
        return document

    @property
    def steps(self) -> dict[str, str]:
        return {step["name"]: step["status"] for step in self.document["steps"]}

    def reason(self, step: str) -> str:
        return str(next(each["reason"] for each in self.document["steps"] if each["name"] == step))


# From end to end


def test_on_a_machine_with_a_gpu_every_step_leaves_its_part_in_one_file(tmp_path: Path) -> None:
    container = write_gpu_container(tmp_path / "container")
    proved = Proved(container, tmp_path, "--steps", "facts,build,conformance,bench", "--json")
    assert proved.status == 0, proved.stderr
    document = proved.document
    assert json.loads(proved.stdout) == document
    assert next(proved.out.iterdir()).name == f"h100_{document['date'][:10]}.json"
    names = ["facts", "build", "conformance tensorrt", "conformance pytorch", "bench tensorrt", "bench pytorch"]
    assert proved.steps == dict.fromkeys(names, "passed")
    machine = document["machine"]
    assert machine["container"] == "26.07"
    assert machine["versions"] | {"tensorrt_llm": "1.2.1", "tensorrt": "10.14.1.48.post1"} == machine["versions"]
    gpu = machine["gpus"][0]
    assert (gpu["name"], gpu["sm"], gpu["driver"], gpu["mig"]) == ("NVIDIA H100 80GB HBM3", 90, "590.44.01", None)
    assert document["drift"] == {"version": "1.2.1", "diff": []}
    assert document["built"]["recipe"]["backend"] == "tensorrt"
    assert document["model"]["num_parameters"] == 4_983_552
    for provider in ("tensorrt", "pytorch"):
        found = document["conformance"][provider]
        assert found["num_passed"] >= 5
        assert (found["num_failed"], found["num_skipped"]) == (0, 0)
    assert [(row["provider"], row["concurrency"]) for row in document["bench"]] == [
        ("tensorrt", 1), ("tensorrt", 2), ("pytorch", 1), ("pytorch", 2),
    ]  # fmt: skip
    for row in document["bench"]:
        assert row["ratio"]["tpot_ms"] == pytest.approx(row["predicted"]["tpot_ms"] / row["measured"]["tpot_ms"], 1e-3)
    assert all(step["duration_s"] > 0 for step in document["steps"])


def test_a_step_that_fails_is_recorded_and_does_not_lose_the_others(tmp_path: Path) -> None:
    container = write_gpu_container(tmp_path / "container")
    proved = Proved(container, tmp_path, "--steps", "facts,build,bench", FAKE_TOOL_FAILS="trtllm-build")
    assert proved.status == 1
    assert proved.steps == {
        "facts": "passed", "build": "failed", "bench tensorrt": "left out", "bench pytorch": "passed",
    }  # fmt: skip
    assert "status 2" in proved.reason("build")
    assert any("fails as it was told to" in line for step in proved.document["steps"] for line in step["last_lines"])
    assert proved.reason("bench tensorrt") == "no engine was built"
    assert {row["provider"] for row in proved.document["bench"]} == {"pytorch"}


def test_a_tensorrt_llm_that_does_not_import_fails_all_that_needs_it(tmp_path: Path) -> None:
    container = write_gpu_container(tmp_path / "container")
    (container.packages / "tensorrt_llm" / "__init__.py").write_text("raise OSError('libcuda.so.1 not found')\n")
    proved = Proved(container, tmp_path, "--steps", "facts,build,conformance,bench")
    assert proved.status == 1
    assert proved.steps == {
        "facts": "failed", "build": "passed",
        "conformance tensorrt": "failed", "conformance pytorch": "failed",
        "bench tensorrt": "failed", "bench pytorch": "failed",
    }  # fmt: skip
    steps = proved.document["steps"]
    assert "libcuda.so.1" in " ".join(
        line for step in steps if step["name"] == "bench pytorch" for line in step["last_lines"]
    )
    assert "libcuda.so.1" in proved.document["conformance"]["pytorch"]["failed"][0]["message"]


def test_without_compiled_engines_the_provider_pytorch_is_proved_alone_and_drift_is_listed(tmp_path: Path) -> None:
    container = write_gpu_container(tmp_path / "container", version="1.3.0")
    for file in container.packages.rglob("*.py"):  # not as it was read
        file.write_text(file.read_text().replace("priority=0.5", "priority=0.7"))
    proved = Proved(container, tmp_path, "--steps", "facts,build,bench")
    assert proved.status == 0, proved.stderr
    assert proved.steps == {
        "facts": "passed", "build": "left out", "bench tensorrt": "left out", "bench pytorch": "passed",
    }  # fmt: skip
    assert "1.3.0 has no compiled engines" in proved.reason("build")
    drift = proved.document["drift"]
    assert drift["version"] == "1.3.0"
    assert {'-   "priority=0.5"', '+   "priority=0.7"'} <= set(drift["diff"])


# Before the first call to a GPU


def prove(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_here("prove", *options, env=environment)


def test_without_a_gpu_it_says_what_it_would_do_and_ends_with_2(tmp_path: Path) -> None:
    found = prove("--out", str(tmp_path / "out"), PATH=str(tmp_path))
    assert found.returncode == 2
    assert "no nvidia-smi on PATH" in found.stderr
    assert "tritonserver:26.07-trtllm-python-py3" in found.stderr
    for step in ("facts", "build", "conformance", "bench", "serve"):
        assert f"  {step}: " in found.stderr
    assert not (tmp_path / "out").exists()


def test_without_a_gpu_json_has_the_error_and_the_wanted_checks(tmp_path: Path) -> None:
    found = prove("--json", "--steps", "bench,facts", PATH=str(tmp_path))
    assert found.returncode == 2
    answer = json.loads(found.stdout)
    assert "no nvidia-smi" in answer["error"]
    assert [line.partition(":")[0] for line in answer["would_do"]] == ["bench", "facts"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param([], "add the name to the row of this GPU, or a new row", id="a name that no row has"),
        pytest.param(["--gpu", "l4"], "gpu l4 is SM 89, but NVIDIA H1000 here is SM 90", id="a row of another SM"),
        pytest.param(["--gpu", "h1000"], "gpu 'h1000' is not known here", id="no such row"),
        pytest.param(["--gpu", "h200", "--model", "gpt-9"], "--model 'gpt-9' is neither", id="no such model"),
        pytest.param(["--steps", "bench,fly"], "--steps: 'fly' is none", id="no such check"),
        pytest.param(["--concurrency", "1,x"], "--concurrency must be numbers", id="no number"),
        pytest.param(["--gpu", "h200", "--isl", "2000"], "the engine reaches to 2048", id="too long"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_done(tmp_path: Path, options: list[str], message: str) -> None:
    container = write_gpu_container(tmp_path / "container", gpu_name="NVIDIA H1000")
    found = prove("--out", str(tmp_path / "out"), *options, **container.environment())
    assert found.returncode == 2
    assert message in found.stderr
    assert not (tmp_path / "out").exists()


def test_every_row_of_the_table_is_found_by_what_the_driver_calls_it() -> None:
    names = [name for gpu in gpus().values() for name in gpu.driver_names]
    assert len(names) == len(set(names)) >= len(gpus())
    assert gpu_of_driver("NVIDIA H200").name == "h200"
    with pytest.raises(SpecError, match=r"gpus\.yaml"):
        gpu_of_driver("NVIDIA H200 ")


def test_a_quantized_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "quantization_config": {}}')
    with pytest.raises(SpecError, match="in 16 bits"):
        find_checkpoint(str(tmp_path))


# Checks


def some_proof() -> Proof:
    return Proof(
        date="2026-11-21T10:00:00+00:00",
        commit=None,
        gpu="h100",
        machine=ProofMachine(gpus=[], versions={"tensorrt_llm": "1.2.1"}),
        model=ProofModel(name="m", architecture="a", num_parameters=1, format="bf16", weights_sha256="0"),
    )


def some_proving(tmp_path: Path) -> Proving:
    checkpoint = find_checkpoint("demo")
    return Proving(some_proof(), checkpoint, gpu_named("h100"), tmp_path, 16, 4, (1,), 60.0, num_kv_tokens={})


def test_failed_cases_fail_the_step_and_stay_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Conformance(
        num_passed=9, num_failed=1, num_skipped=0, failed=[FailedCase("test_a[pytorch]", "assert 1 == 2")]
    )
    monkeypatch.setattr(proving, "run_suite", lambda *_: found)
    proof = some_proving(tmp_path)
    (check,) = (check for check in proof.checks(["conformance"]) if check.name == "conformance pytorch")
    record = run_check(check, lambda _: contextlib.nullcontext())
    assert (record.status, record.reason) == ("failed", "1 of 10 cases: test_a[pytorch]")
    assert proof.proof.conformance == {"pytorch": found}


def test_without_triton_nothing_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise SpecError("no `tritonserver` on PATH")

    monkeypatch.setattr(proving, "find_triton", none)
    with pytest.raises(LeftOut, match="no `tritonserver` on PATH"):
        some_proving(tmp_path).checks(["serve"])[1].run()


SUITE = """
import pytest
pytestmark = [pytest.mark.slow, pytest.mark.gpu]
def test_good(): pass
def test_bad(): assert 1 == 2
@pytest.mark.skip(reason="no")
def test_left(): pass
@pytest.fixture
def broken(): raise OSError("no engine")
def test_without_an_engine(broken): pass
def test_of_another_kind(): pass
"""


def checkout(folder: Path, suite: str) -> Path:
    (folder / "tests/unit/serving/engines/seam").mkdir(parents=True)
    (folder / "tests/unit/serving/engines/seam/test_engine_conformance.py").write_text(suite)
    (folder / "tests/conftest.py").write_text(
        "def pytest_addoption(parser): parser.addoption('--engine-spec')\n"
        "def pytest_configure(config): config.addinivalue_line('markers', 'gpu: x')\n"
    )
    return folder


def test_cases_are_counted_by_how_they_ended(tmp_path: Path) -> None:
    repository = checkout(tmp_path / "repository", SUITE)
    (tmp_path / "work").mkdir()
    found = run_suite("pytorch", {"dir": "x"}, tmp_path / "work", 60.0, repository=repository)
    assert (found.num_passed, found.num_failed, found.num_skipped) == (2, 2, 1)
    assert [case.name for case in found.failed] == ["test_bad", "test_without_an_engine"]
    assert "assert 1 == 2" in found.failed[0].message
    spec = json.loads((tmp_path / "work/conformance_pytorch.spec.json").read_text())
    assert spec == {"provider": "pytorch", "dir": "x"}


def test_a_suite_that_does_not_load_fails_and_one_that_is_missing_is_said_to_be(tmp_path: Path) -> None:
    repository = checkout(tmp_path / "repository", "import no_such_module\n")
    (tmp_path / "work").mkdir()
    with pytest.raises(CheckFailed, match="status 2") as failure:
        run_suite("pytorch", {}, tmp_path / "work", 60.0, repository=repository)
    assert any("no_such_module" in line for line in failure.value.last_lines)
    with pytest.raises(LeftOut, match="from a checkout"):
        run_suite("pytorch", {}, tmp_path / "work", 60.0, repository=tmp_path)
    with pytest.raises(LeftOut, match="from a checkout"):
        read_facts(tmp_path / "work", "1.2.1", repository=tmp_path)


def test_a_program_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    started_s = time.monotonic()
    with pytest.raises(CheckFailed, match="did not end within 2 s") as failure:
        run_child(
            ["sh", "-c", f"echo begun; (while true; do date > {alive}; sleep 0.05; done) & sleep 60"],
            cwd=tmp_path, log=tmp_path / "log", timeout_s=2,
        )  # fmt: skip
    assert time.monotonic() - started_s < 30
    assert failure.value.last_lines[-1] == "begun"
    alive.unlink()
    time.sleep(0.3)
    assert not alive.exists(), "its child goes on"


# What is measured


def test_a_steady_load_counts_what_comes_after_everybodys_first_answer() -> None:
    # Two clients, answers of 4 tokens; the first ones have 2 and 4, so that the clients do not go in step.
    loop = ClosedLoop(SteadyLoad(concurrency=2, isl=8, osl=4, num_requests=2))
    assert [loop.send(0), loop.send(0)] == [Turn(0, 2), Turn(1, 4)]
    loop.arrive(0, 2, 10 * MS)
    loop.end(0, 10 * MS)
    assert loop.send(10 * MS) == Turn(2, 4)  # before the counting: it is not counted
    loop.arrive(1, 4, 100 * MS)
    loop.end(1, 100 * MS)  # counting begins
    assert [loop.send(100 * MS).number] == [3]
    loop.arrive(2, 4, 110 * MS)  # its tokens are made in that time, so they count
    loop.end(2, 110 * MS)
    assert loop.send(120 * MS).number == 4
    loop.arrive(3, 1, 130 * MS)  # TTFT 30 ms
    loop.arrive(4, 2, 140 * MS)  # TTFT 20 ms
    loop.arrive(3, 3, 160 * MS)  # TPOT 30 / 3 = 10 ms
    loop.end(3, 160 * MS)
    assert not loop.is_over
    loop.arrive(4, 2, 200 * MS)  # TPOT 60 / 3 = 20 ms
    loop.end(4, 200 * MS)
    assert loop.is_over
    measured = loop.measured()
    assert measured.num_requests == 2
    assert measured.ttft_p99_ms == 30
    # 12 tokens from 100 to 200 ms.
    assert msgspec.structs.astuple(measured.figures) == pytest.approx((25.0, 15.0, 120.0))


def test_the_plan_is_asked_about_the_very_engine_that_was_measured() -> None:
    shape, load = find_checkpoint("demo").shape, SteadyLoad(concurrency=64, isl=512, osl=128, num_requests=1)

    def predicted(kv_tokens: int, serving: ServingLimit | None = None) -> Figures | None:
        return predict(shape, gpu_named("h100"), "bf16", load, Limits(kv_tokens, 64, 8192), serving=serving)

    roomy, narrow = predicted(10**6), predicted(8 * 640)
    assert roomy is not None
    assert narrow is not None
    assert narrow.tokens_per_s < roomy.tokens_per_s, "only eight sequences fit"
    assert predicted(100) is None
    served = predicted(10**6, ServingLimit(responses_per_s=100.0, max_chunk_delay_ms=0.0))
    assert served is not None
    assert served.tokens_per_s == 100.0
    assert ratio(Figures(10, 4, 100), Figures(20, 2, 0)) == Figures(0.5, 2.0, 0.0)


def test_a_file_of_results_is_read_back_and_another_is_refused(tmp_path: Path) -> None:
    proof = some_proof()
    assert write_proof(proof, tmp_path).name == "h100_2026-11-21.json"
    assert load_proofs(tmp_path) == [proof]
    (tmp_path / "l4_2026-11-21.json").write_text("{}")
    with pytest.raises(SpecError, match="is not a result of `trireme prove`"):
        load_proofs(tmp_path)
