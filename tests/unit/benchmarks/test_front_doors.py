# SPDX-License-Identifier: Apache-2.0
"""Front doors are compared within a round; a side that cannot run here says why, and the others are measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from benchmarks.peers import triton_openai, triton_openai_launcher
from benchmarks.peers.cpu_parts import ENGINE, FRONT_DOOR, SERVER
from benchmarks.peers.figures import Figures
from benchmarks.peers.litellm_proxy import LiteLlmProxy
from benchmarks.peers.rounds import Side
from benchmarks.peers.simulated import SimulatedEnsemble
from benchmarks.peers.triton_openai import TritonOpenAi
from benchmarks.studies import front_door_table, front_doors
from benchmarks.support.report import RESULTS
from documents import performance_page
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import load_deployment

TOKENIZER = load_deployment(DEFAULT_DEPLOYMENT).model.tokenizer.dir


def of(core_s: float, tokens_per_s: float = 100.0) -> Figures:
    return Figures(
        tokens_per_s=tokens_per_s, ttft_p50_ms=10, ttft_p99_ms=20, tpot_p50_ms=5, tokens_per_chunk=1,
        client_cpu_share=0.25, server_cpu_s_per_1000_tokens=core_s, tokens_per_core_s=1000 / core_s,
        cpu_parts_s_per_1000_tokens={FRONT_DOOR: core_s / 2, SERVER: 0.0, ENGINE: core_s / 4},
    )  # fmt: skip


def measured() -> list[dict[str, object]]:
    grpc = SimulatedEnsemble(TOKENIZER, step_ms=10, has_delay=True, name="trireme, gRPC")
    gateway = SimulatedEnsemble(TOKENIZER, step_ms=10, has_delay=True, name="trireme, gateway")
    other = LiteLlmProxy(TOKENIZER, step_ms=10)
    rounds = {
        grpc.name: {1: [of(1), of(1)]},
        gateway.name: {1: [of(2), of(2)]},
        other.name: {1: [of(4, 50), of(8, 50)]},
    }
    sides = {name: Side(name=name, precision="no model", rounds=each) for name, each in rounds.items()}
    found: list[dict[str, object]] = json.loads(json.dumps(front_doors.rows(sides, [grpc, gateway, other])))
    return found


def test_each_side_is_beside_both_of_ours_within_a_round() -> None:
    grpc, gateway, other = measured()
    assert "grpc_over_it" not in grpc
    assert "gateway_over_it" not in gateway
    # Twice and four times as many tokens for a core; half as many as gRPC.
    assert other["gateway_over_it"]["tokens_per_core_s"] == {"median": 3.0, "low": 2.0, "high": 4.0}  # type: ignore[index]
    assert other["grpc_over_it"]["tokens_per_core_s"]["median"] == 6.0  # type: ignore[index]
    assert other["gateway_over_it"]["tokens_per_s"]["median"] == 2.0  # type: ignore[index]
    assert grpc["gateway_over_it"]["tokens_per_core_s"]["median"] == 0.5  # type: ignore[index]
    assert other["cpu_parts_s_per_1000_tokens"][FRONT_DOOR]["median"] == 3.0  # type: ignore[index]


def test_the_table_of_the_documents_has_every_side_and_says_which_were_not_run() -> None:
    found = measured()
    for row in front_door_table.cells(found):
        assert len(row) == len(front_door_table.COLUMNS)
    result = {
        "rows": found,
        "not_run": [{"side": "Triton's OpenAI frontend", "because": "main.py is not there"}],
        "sides": [{"side": row["side"], "version": "1", "precision": "no model", "settings": "x"} for row in found],
    }
    text = performance_page.front_doors(result, "there.")
    assert "| 1 | LiteLLM's proxy | 50 | 10.0 / 20.0 | 5.00 | 6.000 | 3.000 | 1.500 | 188 | 25% | 2.00" in text
    assert "Triton's OpenAI frontend was not run here: main.py is not there." in text


def test_a_page_without_a_result_has_no_table() -> None:
    tables = performance_page.tables()
    has_table = tables["front doors"].startswith("| users |")
    assert has_table == any(RESULTS.glob("front_doors_[0-9]*.json"))


@pytest.mark.parametrize(
    ("python", "says"),
    [
        ("/no/such/python", "/no/such/python is not there; --triton-python names a Python"),
        (sys.executable, "cannot import what the frontend needs: ModuleNotFoundError: No module named"),
    ],
    ids=["no Python", "no packages"],
)
def test_a_frontend_of_triton_that_cannot_run_says_what_it_lacks(tmp_path: Path, python: str, says: str) -> None:
    side = TritonOpenAi(TOKENIZER, step_ms=10, folder=tmp_path, python=python)
    assert "main.py is not there; NVIDIA's containers have it" in (side.lacks() or "")
    (tmp_path / "openai_frontend").mkdir()
    (tmp_path / "openai_frontend" / "main.py").touch()
    assert says in (side.lacks() or "")


def test_a_frontend_that_lacks_nothing_tells_its_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = tmp_path / "openai_frontend" / "main.py"
    main.parent.mkdir()
    main.touch()
    side = TritonOpenAi(TOKENIZER, step_ms=10, folder=tmp_path, python=sys.executable)
    monkeypatch.setattr(triton_openai, "_VERSIONS", "print('Triton 1')")
    assert side.lacks() is None
    assert side.version == "Triton 1"


def test_the_launcher_adds_options_of_triton_and_leaves_the_rest_to_the_frontend(tmp_path: Path) -> None:
    (tmp_path / "tritonserver.py").write_text("def Server(**options):\n    return options\n")
    main = tmp_path / "frontend" / "main.py"
    main.parent.mkdir()
    (main.parent / "beside.py").write_text("WORD = 'found'\n")
    main.write_text(
        "import beside, json, sys, tritonserver\n"
        "print(json.dumps([tritonserver.Server(model_repository='m'), sys.argv, beside.WORD, __name__]))\n"
    )
    told = subprocess.run(
        [sys.executable, triton_openai_launcher.__file__, str(main), '{"backend_directory": "b"}', "--port", "1"],
        capture_output=True, text=True, check=True, env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert json.loads(told.stdout) == [
        {"backend_directory": "b", "model_repository": "m"},
        [str(main), "--port", "1"],
        "found",
        "__main__",
    ]


def test_words_that_name_no_side_are_refused_with_the_names(tmp_path: Path) -> None:
    app = Typer()
    app.command()(front_doors.main)
    refused = CliRunner().invoke(app, ["--only", "nobody"])
    assert refused.exit_code == 2
    assert "trireme, gateway" in refused.output
    alone = CliRunner().invoke(app, ["--only", "Triton", "--triton-openai", str(tmp_path)])
    assert alone.exit_code == 1
    assert "main.py is not there" in " ".join(alone.output.split())
