# SPDX-License-Identifier: Apache-2.0
"""The documents say of GPUs what the data and the files of `trireme prove` say."""

import re
from pathlib import Path

import pytest

from build_engines.checkpoint.weight_formats import KV_FORMAT_SMS, WEIGHT_FORMATS
from build_engines.prove.proof import CheckRecord, GpuState, Proof, ProofMachine, ProofModel, load_proofs, write_proof
from build_engines.recipes.trtllm_versions import VERSIONS
from documents.support_table import (
    NOT_YET,
    PROOFS,
    README,
    gpu_sentence,
    render_tables,
    with_gpu_row,
)
from documents.triton_differences import differences
from ensemble_configs.releases.containers import containers


def proof_of(gpu: str, *, version: str = "1.2.1", failed: str | None = None) -> Proof:
    steps = [CheckRecord(name=failed, status="failed", duration_s=1.0)] if failed else []
    return Proof(
        date="2026-12-01T10:00:00+00:00",
        commit="abc",
        gpu=gpu,
        machine=ProofMachine(gpus=[GpuState(name=gpu, sm=90)], versions={"tensorrt_llm": version}),
        model=ProofModel(name="m", architecture="a", num_parameters=1, format="bf16", weights_sha256="0"),
        steps=steps,
    )


def test_the_readme_says_not_yet_run_on_a_gpu_exactly_as_long_as_no_proof_is_committed() -> None:
    readme, proofs = README.read_text(encoding="utf-8"), load_proofs(PROOFS)
    assert (NOT_YET in readme) == (not proofs)
    assert readme == with_gpu_row(readme, proofs), "run `make docs` and commit the result"


def test_a_committed_proof_takes_the_place_of_not_yet(tmp_path: Path) -> None:
    write_proof(proof_of("h100"), tmp_path)
    write_proof(proof_of("l4", failed="conformance pytorch"), tmp_path)
    readme = with_gpu_row(f"a\n| GPU | {NOT_YET} |\nb\n", load_proofs(tmp_path))
    assert NOT_YET not in readme
    assert "run on h100 with TensorRT-LLM 1.2.1, 2026-12-01; l4 with" in readme
    assert "2026-12-01 (failed: conformance pytorch);" in readme
    rows = {line.split(" | ")[1]: line for line in render_tables(load_proofs(tmp_path)).splitlines() if " | " in line}
    assert rows["1.2.1"].endswith("| h100, 2026-12-01; l4, 2026-12-01 |")
    assert rows["1.2.0"].endswith("| none yet |")


def test_a_proof_of_vllm_is_one_of_vllm(tmp_path: Path) -> None:
    proof = proof_of("h100")
    proof.engine = "vllm"
    proof.machine.versions["vllm"] = "0.32.0"
    assert write_proof(proof, tmp_path).name == "h100_vllm_2026-12-01.json"
    assert gpu_sentence(load_proofs(tmp_path)).startswith("run on h100 with vLLM 0.32.0, 2026-12-01;")
    rows = {line.split(" | ")[1]: line for line in render_tables([proof]).splitlines() if " | " in line}
    assert rows["1.2.1"].endswith("| none yet |")


def test_what_was_read_of_each_version_is_said_and_who_serves_it() -> None:
    tables = render_tables([])
    assert "| arguments of `LLM` | listing | source |" in tables
    assert "| flags of `trtllm-build` | partly | - |" in tables
    assert "| formats | listing | no |" in tables
    assert "| served by | `tensorrt`, `pytorch` | `pytorch` |" in tables


def test_a_readme_without_the_row_is_an_error() -> None:
    with pytest.raises(ValueError, match="0 rows"):
        with_gpu_row("nothing", [])
    assert gpu_sentence([]).startswith(NOT_YET)


def test_containers_and_known_command_lines_agree() -> None:
    rows = {row.tensorrt_llm: row for row in containers().rows}
    assert {name: (rows[name].tensorrt, rows[name].tags) for name in VERSIONS} == VERSIONS


def test_every_gpu_has_a_row_with_its_formats() -> None:
    lines = [line.split(" | ") for line in render_tables([]).splitlines() if line.startswith("| ")]
    header = next(cells for cells in lines if cells[0] == "| GPU")
    of_sm = {cells[1]: dict(zip(header, cells, strict=True)) for cells in lines if len(cells) == len(header)}
    assert of_sm["100"]["`int4_awq`"] == "no"
    assert of_sm["90"]["`fp8_rowwise`"] == "yes"
    assert of_sm["80"]["`fp8`"] == "no"
    assert len(header) == 2 + len(WEIGHT_FORMATS) + len(KV_FORMAT_SMS) - 1


def test_no_cell_of_the_differences_ends_where_yaml_would_begin_a_comment() -> None:
    for row in differences().rows:
        for cell in (row.what, row.older, row.newer, row.here):
            assert cell.count("(") == cell.count(")"), cell


def test_every_difference_between_triton_servers_names_tests_that_there_are() -> None:
    root = README.parent
    for row in differences().rows:
        for test in row.tests:
            file, _, name = test.partition("::")
            source = (root / file).read_text(encoding="utf-8")
            assert not name or re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), f"{row.what}: {test}"
