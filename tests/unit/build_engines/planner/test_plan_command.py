# SPDX-License-Identifier: Apache-2.0
"""`trireme plan` from the command line: right, wrong, as data and as a picture."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from build_engines.checkpoint.known_models import known_models
from build_engines.checkpoint.quantized_checkpoint import quantized_as
from trireme.base.project_files import CODE_ROOT
from trireme.commands import run_command

DEMO = CODE_ROOT / "examples/demo_model/target"


def plan(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        run_command("plan", list(args))
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def test_a_table_with_the_best_first_and_the_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = plan(
        capsys, "llama-3.1-8b", "--gpu", "l40s", "--gpus", "2", "--price-per-gpu-hour", "1", "--top", "3"
    )
    assert code == 0
    assert "8,030,261,248 parameters" in out
    assert "KV bytes a token: bf16 131,072, fp8 65,536" in out
    assert "$/M tokens" in out
    assert "more options: --top " in out
    assert "nvfp4 does not run on SM 89 (L40S); it does on SM 100, 103, 120" in out


def test_of_a_model_that_sees_the_plan_says_what_is_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--gpu", "h100-nvl", "--gpus", "1", "--top", "1")
    note = "text part alone: the vision tower and its memory are not counted"
    code, out, _ = plan(capsys, "gemma-3-12b", *options)
    assert (code, out.count(note)) == (0, 1)
    assert note not in plan(capsys, "gemma-2-9b", *options)[1]
    data = [json.loads(plan(capsys, name, *options, "--json")[1]) for name in ("gemma-3-12b", "gemma-2-9b")]
    assert [one["model"]["is_vision_tower_left_out"] for one in data] == [True, False]


def test_fp8_on_a_gpu_without_it_is_refused_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = plan(capsys, "llama-3.1-8b", "--gpu", "a100-80", "--format", "fp8")
    assert code == 2
    assert "no FP8 tensor cores, and TensorRT-LLM does not unpack FP8 weights; in 8 bits it runs int8_weight" in err
    code, out, _ = plan(capsys, "llama-3.1-8b", "--gpu", "a100-80", "--format", "int8_weight_only", "--top", "1")
    assert code == 0
    assert "int8_weight_only" in out


def test_a_checkpoint_by_its_folder_and_by_its_config(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--gpu", "a10g", "--gpus", "1", "--isl", "100", "--osl", "100", "--json")
    found = [json.loads(plan(capsys, str(path), *options)[1]) for path in (DEMO, DEMO / "config.json")]
    assert found[0]["model"]["num_parameters"] == 4_983_552
    assert found[0]["options"] == found[1]["options"]


def test_only_what_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    args = [
        "--format",
        "fp8",
        "--kv-format",
        "fp8",
        "--tp-size",
        "4",
        "--pp-size",
        "1",
        "--concurrency",
        "64",
        "--json",
    ]
    code, out, _ = plan(capsys, "llama-3.1-70b", "--gpus", "4", *args)
    assert code == 0
    [option] = [one for one in json.loads(out)["options"] if one["cp_size"] == 1]
    assert (option["weight_format"], option["kv_format"], option["tp_size"]) == ("fp8", "fp8", 4)
    assert option["batch_size"] == 64
    assert option["engine_output_tokens_per_s"] >= option["served_output_tokens_per_s"]


def test_the_picture_says_what_it_shows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.svg"
    asked = ("llama-3.1-8b", "--gpus", "2", "--osl", "300", "--slo-tpot-ms", "12.5", "--slo-ttft-ms", "150")
    assert plan(capsys, *asked, "--plot", str(path))[0] == 0
    picture = path.read_text(encoding="utf-8")
    assert picture.startswith("<?xml")
    for words in (
        "llama-3.1-8b on up to 2 x H100-SXM-80GB: 1,000 tokens in, 300 out",
        "predicted by roofline, not measured; as much as each option takes, TTFT &lt;= 150 ms, TPOT &lt;= 12.5 ms",
        "tokens/s of one user (1 / TPOT)",
        "tokens/s of one GPU",
        "TPOT 12.5 ms",
        "TTFT 150 ms",
        "misses a target",
        "fp8 (alike: fp8_rowwise); KV fp8",
    ):
        assert f"<!-- {words} -->" in picture, words
    assert "<!-- first of the plan: " in picture


def test_the_front_of_each_format_is_in_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("llama-3.1-8b", "--gpus", "2", "--format", "bf16", "--format", "fp8", "--slo-tpot-ms", "20", "--json")
    points = json.loads(plan(capsys, *asked)[1])["pareto"]
    assert {one["weight_format"] for one in points} == {"bf16", "fp8"}
    for one in points:
        own = [other for other in points if other["weight_format"] == one["weight_format"]]
        assert not any(beats(other, one) for other in own)
        assert one["is_best_of_all_formats"] is not any(beats(other, one) for other in points)
        assert one["tokens_per_s_of_a_user"] == pytest.approx(1000 / one["tpot_ms"])
        assert one["concurrency"] == one["batch_size"] * one["num_replicas"]
        assert (one["missed"] is None) == (one["tpot_ms"] <= 20)
    assert any(one["missed"] for one in points)


def beats(one: dict[str, float], other: dict[str, float]) -> bool:
    return (
        one["tokens_per_s_of_a_user"] > other["tokens_per_s_of_a_user"]
        and one["tokens_per_s_of_a_gpu"] > other["tokens_per_s_of_a_gpu"]
    )


def test_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.png"
    assert plan(capsys, "llama-3.1-8b", "--gpus", "1", "--slo-tpot-ms", "20", "--plot", str(path))[0] == 0
    assert path.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["gpt-9"], "model 'gpt-9' is neither a folder or config.json here nor a known name; names are llama-2-7b, "),
        (["llama-3.1-8b", "--gpu", "h101"], "gpu 'h101' is not known here; there are a100-40, "),
        (["llama-3.1-8b", "--format", "int3"], "--format 'int3' is not known; there are fp16, "),
        (["llama-3.1-8b", "--rate", "1", "--users", "5"], "--rate and --users are two loads; give one"),
        (["llama-3.1-8b", "--isl", "0"], "Input should be greater than or equal to 1"),
        (["llama-3.1-8b", "--gpus", "100001"], "'--gpus': Input should be less than or equal to 100000"),
        (["llama-3.1-8b", "--gpus", "8", "--nodes", "3"], "--gpus 8 over --nodes 3: each node has as many GPUs"),
        (["llama-3.1-8b", "--price-per-gpu-hour", "inf"], "Invalid value for '--price-per-gpu-hour'"),
        (["llama-3.1-8b", "--slo-ttft-ms", "1e400"], "Invalid value for '--slo-ttft-ms'"),
        (["llama-3.1-8b", "--slo-tpot-ms", "nan"], "Invalid value for '--slo-tpot-ms'"),
        (["llama-3.1-8b", "--users", "5", "--think-time-s", "inf"], "Invalid value for '--think-time-s'"),
        (["llama-3.1-8b", "--rate", "inf"], "Invalid value for '--rate'"),
        (["llama-3.1-8b", "--concurrency", "inf"], "Invalid value for '--concurrency'"),
        (["llama-3.1-8b", "--users", "inf"], "Invalid value for '--users'"),
        (["llama-3.1-8b", "--serving-responses-per-s", "inf"], "Invalid value for '--serving-responses-per-s'"),
        (["llama-3.1-8b", "--kv-fraction", "nan"], "Invalid value for '--kv-fraction'"),
        (["llama-3.1-8b", "--rate", "1", "--think-time-s", "5"], "--think-time-s 5 is how long --users think"),
        (["llama-3.1-70b", "--gpu", "l4", "--gpus", "1"], "nothing serves this workload on 1 x L4; the smallest that"),
        (["llama-3.1-8b", "--plot", "plan.gif"], "name a .png, .svg or .pdf"),
        (["llama-3.1-8b", "--plot", "/no/such/folder/plan.png"], "/no/such/folder is no folder; make it first"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str], args: list[str], words: str) -> None:
    code, out, err = plan(capsys, *args)
    assert code == 2
    assert out == ""
    assert words in err
    assert "Traceback" not in err


def test_a_terminal_that_lacks_a_character_gets_a_question_mark() -> None:
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "trireme", "plan", "llama-3.1-8b", "--gpus", "1", "--top", "1"]
    done = subprocess.run(command, env=ascii_only, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "x/? 1." in done.stdout


def test_a_config_that_is_no_plain_file_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path("/dev/zero")):
        code, out, err = plan(capsys, str(path))
        assert (code, out) == (2, "")
        assert "is not a plain file; name a checkpoint's folder or its config.json" in err


def test_a_config_of_more_than_16_mib_is_refused_unread(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(2**34)
    code, _, err = plan(capsys, str(path))
    assert code == 2
    assert "config.json is larger than 16 MiB" in err


MIXED = {"model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"}, "layers.0.mlp.experts": {"quant_algo": "NVFP4"}}
EXPERTS = {"layers.0.ffn.experts": {"quant_algo": "NVFP4", "group_size": 16}}


def compressed(kind: str, bits: int, strategy: str, input_bits: int | None = None) -> dict[str, object]:
    """Return what compressed-tensors writes of linear layers."""
    inputs = None if input_bits is None else {"type": kind, "num_bits": input_bits}
    group = {"weights": {"type": kind, "num_bits": bits, "strategy": strategy}, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"quant_method": "awq", "bits": 4}, "(awq, 4 bits), which is int4_awq here: rows of other formats have to be"),
        ({"quant_method": "gptq", "bits": 4}, "(gptq, 4 bits), which is int4_gptq here"),
        ({"quant_method": "gptq", "bits": 3}, "(gptq, 3 bits), which is none of the formats here: every row below has"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "(fp8 in blocks), which is fp8_block here"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "(modelopt nvfp4), which is nvfp4 here"),
        ({"quant_method": "mxfp4"}, "(mxfp4), which is mxfp4 here"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}, "(modelopt nvfp4_awq), which is nvfp4 here"),
        ({"quant_algo": "FP8", "producer": {"name": "modelopt"}}, "(modelopt fp8), which is fp8 here"),
        (
            {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": MIXED},
            "(modelopt, fp8 and nvfp4 in different layers), which is none of the formats here",
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": EXPERTS},
            "(modelopt nvfp4), which is nvfp4 here",
        ),
        ({"quant_method": "compressed-tensors"}, "(compressed-tensors: no groups), which is none of the formats here"),
        ({"quant_method": "of-tomorrow"}, "(of-tomorrow), which is none of the formats here"),
        ({}, "(by a method that it does not name), which is none of the formats here"),
    ],
)
def test_a_checkpoint_that_is_quantized_already_is_said_to_be(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, facts: dict[str, object], words: str
) -> None:
    path = write_config(tmp_path, quantization_config=facts)
    assert words in plan(capsys, str(path), "--gpus", "1", "--top", "1")[1]
    said = json.loads(plan(capsys, str(path), "--gpus", "1", "--json")[1])["model"]["quantized"]
    assert f"which is {said['weight_format'] or 'none of the formats'} here" in words
    assert f"({said['method']}" in words


def test_what_modelopt_wrote_beside_the_config_counts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    assert "(modelopt fp8), which is fp8 here" in plan(capsys, str(tmp_path), "--gpus", "1")[1]


@pytest.mark.parametrize(
    ("facts", "what", "weight_format"),
    [
        (compressed("float", 8, "tensor", 8), "float 8 by tensor, activations float 8", "fp8"),
        (compressed("float", 8, "channel", 8), "float 8 by channel, activations float 8", "fp8_rowwise"),
        (compressed("float", 8, "block", 8), "float 8 by block, activations float 8", "fp8_block"),
        (compressed("float", 8, "channel"), "float 8 by channel, activations 16 bits", None),
        (compressed("float", 4, "tensor_group", 4), "float 4 by tensor_group, activations float 4", "nvfp4"),
        (compressed("int", 4, "group"), "int 4 by group, activations 16 bits", "int4_gptq"),
        (compressed("int", 8, "channel"), "int 8 by channel, activations 16 bits", "int8_weight_only"),
        (compressed("int", 8, "channel", 8), "int 8 by channel, activations int 8", "smoothquant"),
    ],
)
def test_compressed_tensors_are_told_by_type_bits_and_scales(
    facts: dict[str, object], what: str, weight_format: str | None
) -> None:
    found = quantized_as({"quantization_config": facts})
    assert found == (f"compressed-tensors: {what}", None, weight_format, False)


@pytest.mark.parametrize(
    ("facts", "is_kept"),
    [
        ({"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "model.layers.0.self_attn.kv_a_proj_with_mqa"]}, True),
        ({"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "model.layers.0.mlp.gate"]}, False),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": EXPERTS}, True),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {"model.layers.0.self_attn.q_proj": {}}}, False),
    ],
)
def test_attention_that_keeps_16_bits_is_said(facts: dict[str, object], *, is_kept: bool) -> None:
    quantized = quantized_as({}, modelopt={"quantization": facts})
    assert quantized is not None
    assert quantized.is_attention_kept is is_kept
    assert ("keeps 16 bits; rows of nvfp4 count all of it in few" in str(quantized)) is is_kept


def test_experts_alone_in_mxfp4_are_what_its_rows_count(capsys: pytest.CaptureFixture[str]) -> None:
    out = plan(capsys, "gpt-oss-20b", "--gpus", "1", "--top", "1")[1]
    assert "(mxfp4), which is mxfp4 here" in out
    assert "keeps 16 bits" not in out
    assert "back ends of TensorRT-LLM serve GptOssForCausalLM in fp16, bf16, mxfp4 alone" in out


@pytest.mark.parametrize("facts", ["awq", 4, ["awq"], True])
def test_a_quantization_config_that_is_no_object_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, facts: object
) -> None:
    code, out, err = plan(capsys, str(write_config(tmp_path, quantization_config=facts)))
    assert (code, out) == (2, "")
    assert f"quantization_config must be an object of keys and values, or left out; got {facts!r}" in err


def write_config(folder: Path, **changes: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(known_models()["llama-3.1-8b"].config | changes))
    return path
