# SPDX-License-Identifier: Apache-2.0
"""A deployment asks no more of an engine than was built, and what is refused is what upstream's loader would not do."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from fake_tensorrt_llm import write_checkpoint
from test_engine_differences import LOOKAHEAD, engine_of, recipe_of
from trtllm_loader import LoadRefused, RuntimeOptions, load

from ensemble_configs.releases.built_engine import load_built_engine
from ensemble_configs.releases.engine_fit import fit_findings, refuse_unfit_engine, whole_sequence_of
from ensemble_configs.spec.batch_limits import step_limits, within_build
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec, TensorRtEngineSpec
from serving.engines.seam.base import EngineInfo, GenerationRequest, SamplingParams
from serving.engines.seam.engine_folder import load_engine_folder
from serving.engines.seam.request_limits import refuse_short_cache, refuse_unservable
from trireme.base.errors import RequestError, SpecError
from trireme.commands import run_command

NOT_PAGED = {"kv_format": "int8", "plugins": {"use_paged_context_fmha": False, "use_fp8_context_fmha": False}}
PLAIN = {"is_chunked_prefill": False, "is_block_reuse": False}
LORA = {"lora": {"target_modules": ["attn_q"], "max_rank": 8}}


def write_built(folder: Path, **recipe: Any) -> Path:
    """Write an engine's folder as `trtllm-build` leaves it, of a recipe."""
    folder.mkdir()
    spec = recipe_of(**recipe)
    (folder / "config.json").write_text(json.dumps(engine_of(spec)))
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}')
    (folder / "rank0.engine").touch()
    return folder


def spec_of(folder: Path, **settings: Any) -> TensorRtEngineSpec:
    plain = {"provider": "tensorrt", "dir": folder, "max_seq_len": 4096}
    return TensorRtEngineSpec.model_validate(plain | settings)


def options_of(spec: TensorRtEngineSpec, *, num_kv_blocks: int | None = None) -> RuntimeOptions:
    """Return the options that our spec makes upstream's LLM with."""
    modes = {"lookahead": "lookahead_decoding"}
    return RuntimeOptions(
        max_batch_size=spec.max_num_seqs,
        max_num_tokens=spec.max_num_batched_tokens,
        max_beam_width=spec.max_beam_width,
        enable_chunked_prefill=spec.is_chunked_prefill,
        enable_block_reuse=spec.is_block_reuse,
        sink_token_length=spec.sink_tokens or 0,
        has_lora=spec.lora is not None,
        max_attention_window=spec.max_attention_window or (),
        speculation=None if spec.speculation is None else modes.get(spec.speculation.method, spec.speculation.method),
        num_kv_blocks=spec.num_kv_blocks or num_kv_blocks,
    )


EXPLICIT_DRAFT_TOKENS, DRAFT_TOKENS_EXTERNAL = 16, 2

# recipe, deployment, the field that is named, and what upstream does with it: refuses, or goes on without
CASES: list[tuple[str, dict[str, Any], dict[str, Any], str, str]] = [
    ("chunked", NOT_PAGED, PLAIN | {"is_chunked_prefill": True}, "engine.is_chunked_prefill", "Chunked context"),
    ("reuse", NOT_PAGED, PLAIN | {"is_block_reuse": True}, "engine.is_block_reuse", "is_block_reuse"),
    ("reuse and context logits", {"is_gathering_context_logits": True}, {}, "engine.is_block_reuse", "is_block_reuse"),
    ("sink tokens", {}, {"sink_tokens": 4}, "engine.sink_tokens", "Cannot support StreamingLLM"),
    ("lora", {}, {"lora": {"dir": "adapters"}}, "engine.lora", "has_lora"),
    ("drafts", {}, {"speculation": LOOKAHEAD}, "engine.speculation.method", "speculation"),
    ("drafts that nobody asked for", {"speculation": LOOKAHEAD}, {}, "engine.speculation", "speculation"),
    ("windows beside drafts", {"speculation": LOOKAHEAD},
     {"speculation": LOOKAHEAD, "max_attention_window": [2048, 4096]},
     "engine.max_attention_window", "Rewinding KV cache blocks"),
    ("a short cache", {}, {"num_kv_blocks": 100}, "engine.num_kv_blocks", "max_seq_len"),
    ("a short cache of beams", {"max_beam_width": 4}, {"max_beam_width": 4, "num_kv_blocks": 130},
     "engine.num_kv_blocks", "max_seq_len"),
    ("beams", {}, {"max_beam_width": 4}, "engine.max_beam_width", "max_beam_width"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("recipe", "settings", "field", "upstream"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_what_upstream_would_refuse_or_leave_off_is_refused_by_name(
    tmp_path: Path, recipe: dict[str, Any], settings: dict[str, Any], field: str, upstream: str
) -> None:
    spec = spec_of(write_built(tmp_path / "engine", **recipe), **settings)
    found = fit_findings(spec)
    assert [finding.check for finding in found] == [field]
    assert "built" in found[0].found or "KV cache has" in found[0].found
    assert found[0].next_step
    with pytest.raises(SpecError, match=field.replace(".", r"\.")):
        refuse_unfit_engine(spec)
    assert upstream in _made_of_it(spec)


def _made_of_it(spec: TensorRtEngineSpec) -> str:
    """Return the loader's error, or the names of what it went on without."""
    options = options_of(spec)
    try:
        loaded = load(spec.dir, options)
    except LoadRefused as exc:
        return str(exc)
    asked = {
        "is_block_reuse": spec.is_block_reuse, "has_lora": options.has_lora, "max_seq_len": spec.max_seq_len,
        "speculation": options.speculation, "max_beam_width": spec.max_beam_width,
    }  # fmt: skip
    assert loaded.warnings
    return ", ".join(name for name, value in asked.items() if getattr(loaded, name) != value)


def test_all_that_an_engine_lacks_is_named_at_once(tmp_path: Path) -> None:
    spec = spec_of(write_built(tmp_path / "engine", **NOT_PAGED), max_beam_width=2)
    with pytest.raises(SpecError) as caught:
        load_engine_folder(spec)
    for field in ("engine.max_beam_width", "engine.is_chunked_prefill", "engine.is_block_reuse"):
        assert field in caught.value.message


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ({}, {}),
        (NOT_PAGED, PLAIN),
        ({"is_gathering_context_logits": True}, {"is_block_reuse": False, "is_gathering_context_logits": True}),
        (LORA, {"lora": {"dir": "adapters", "max_rank": 8, "target_modules": ["attn_q"]}}),
        ({"speculation": LOOKAHEAD}, {"speculation": LOOKAHEAD, "max_attention_window": [8192, 9000]}),
        ({"max_beam_width": 4}, {"max_beam_width": 4, "num_kv_blocks": 131}),  # 127 shared, and one of each beam
        ({}, {"num_kv_blocks": 128}),
    ],
    ids=["plain", "not paged", "context logits", "lora", "lookahead", "beams", "just room"],
)
def test_what_was_built_is_served_and_loads_unchanged(
    tmp_path: Path, recipe: dict[str, Any], settings: dict[str, Any]
) -> None:
    spec = spec_of(write_built(tmp_path / "engine", **recipe), **settings)
    assert fit_findings(spec) == []
    folder = load_engine_folder(spec)
    within = within_build(spec, num_seqs=folder.max_batch_size, num_tokens=folder.max_num_tokens)
    loaded = load(spec.dir, options_of(within))
    assert loaded.warnings == []
    assert folder.max_prompt_tokens == min(loaded.max_input_len, spec.max_seq_len - 1)


def test_adapters_of_a_higher_rank_or_other_modules_are_refused(tmp_path: Path) -> None:
    lora = {"dir": "adapters", "target_modules": ["attn_q", "mlp_gate"]}
    spec = spec_of(write_built(tmp_path / "engine", **LORA), lora=lora)
    found = {finding.check: finding for finding in fit_findings(spec)}
    assert found["engine.lora.max_rank"].found.startswith("64, which is more than")
    assert found["engine.lora.target_modules"].found.startswith("mlp_gate, which names modules")


def test_requests_of_an_engine_that_drafts_have_the_length_of_its_recipe(tmp_path: Path) -> None:
    built = load_built_engine(write_built(tmp_path / "engine", speculation=LOOKAHEAD)).build_config
    assert built.max_seq_len == 4096 + 23  # (4 - 2) + (4 - 1 + 4)(4 - 1) drafts are counted in
    assert built.served_seq_len == 4096
    too_long = spec_of(tmp_path / "engine", max_seq_len=4097, speculation=LOOKAHEAD)
    assert [finding.check for finding in fit_findings(too_long)] == ["engine.max_seq_len"]
    more = spec_of(tmp_path / "engine", speculation=LOOKAHEAD | {"window_size": 9})
    assert [finding.check for finding in fit_findings(more)] == ["engine.speculation"]


def write_drafting(folder: Path, mode: int) -> Path:
    """Write an engine that no recipe of ours makes, by its bit of `SpeculativeDecodingMode`."""
    write_built(folder)
    config = json.loads((folder / "config.json").read_text())
    config["build_config"] |= {"speculative_decoding_mode": mode, "max_draft_len": 4}
    config["build_config"]["max_seq_len"] += 4
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_an_engine_of_explicit_draft_tokens_is_refused_for_no_deployment_can_name_them(tmp_path: Path) -> None:
    spec = spec_of(write_drafting(tmp_path / "engine", EXPLICIT_DRAFT_TOKENS))
    assert load(spec.dir, options_of(spec)).speculation == "explicit_draft_tokens"  # and drafts
    with pytest.raises(SpecError, match=r"engine\.dir .*built to draft by explicit draft tokens.*build"):
        refuse_unfit_engine(spec)


def test_an_engine_for_the_drafts_of_another_model_needs_block_reuse(tmp_path: Path) -> None:
    folder = write_drafting(tmp_path / "engine", DRAFT_TOKENS_EXTERNAL)
    assert fit_findings(spec_of(folder)) == []
    without = spec_of(folder, is_block_reuse=False)
    assert [finding.check for finding in fit_findings(without)] == ["engine.is_block_reuse"]
    with pytest.raises(LoadRefused, match="KV cache block reuse must be enabled"):
        load(folder, options_of(without))


def test_defaults_ask_for_no_more_than_was_built(tmp_path: Path) -> None:
    spec = spec_of(write_built(tmp_path / "engine"))
    assert (spec.max_num_seqs, spec.max_num_batched_tokens) == (2048, 8192)
    assert fit_findings(spec) == []
    within = within_build(spec, num_seqs=64, num_tokens=4096)
    assert (within.max_num_seqs, within.max_num_batched_tokens) == (64, 4096)
    said = spec_of(tmp_path / "engine", max_num_seqs=128)
    assert [finding.check for finding in fit_findings(said)] == ["engine.max_num_seqs"]
    assert within_build(said, num_seqs=256, num_tokens=None).max_num_seqs == 128


def test_a_recipes_batch_is_upstreams_on_large_gpus_and_a_share_of_it_on_small_ones() -> None:
    for gpu, seqs, tokens in (("h100", 2048, 8192), ("l40s", 1024, 4096), ("l4", 512, 2048)):
        recipe = recipe_of(gpu=gpu, max_batch_size=1)
        default = recipe_of(gpu=gpu)
        assert (default.max_num_tokens, recipe.max_num_tokens) == (tokens, tokens)
        assert recipe_of(gpu=gpu, max_num_tokens=77).max_num_tokens == 77
        assert type(default).model_validate(default.model_dump(exclude={"max_batch_size"})).max_batch_size == seqs
    assert step_limits(22.1) < step_limits(44.5) < step_limits(79.18) == step_limits(178.5)


def test_int4_awq_with_an_fp8_cache_is_refused_on_the_pytorch_backend(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint")
    awq = {"quantization": {"quant_algo": "W4A16_AWQ", "kv_cache_quant_algo": None}}
    (folder / "hf_quant_config.json").write_text(json.dumps(awq))
    plain = PyTorchEngineSpec(provider="pytorch", dir=folder)
    assert fit_findings(plain) == []
    [finding] = fit_findings(plain.model_copy(update={"kv_cache_dtype": "fp8"}))
    assert finding.check == "engine.kv_cache_dtype"
    assert "no attention kernel for an FP8 KV cache beside int4_awq weights" in finding.found
    awq["quantization"]["kv_cache_quant_algo"] = "FP8"
    (folder / "hf_quant_config.json").write_text(json.dumps(awq))
    assert [each.check for each in fit_findings(plain)] == ["engine.kv_cache_dtype"], "auto is the checkpoint's"


def test_block_reuse_of_a_model_with_linear_attention_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", architectures=["Qwen3NextForCausalLM"])
    reusing = PyTorchEngineSpec(provider="pytorch", dir=folder)
    [finding] = fit_findings(reusing)
    assert (finding.check, finding.wanted, finding.next_step) == ("engine.is_block_reuse", "false", "set it to false")
    assert finding.found.startswith("True, which Qwen3NextForCausalLM cannot have: TensorRT-LLM keeps a state of each")
    with pytest.raises(SpecError, match=r"engine\.is_block_reuse"):
        refuse_unfit_engine(reusing)
    assert fit_findings(reusing.model_copy(update={"is_block_reuse": False})) == []
    other = write_checkpoint(tmp_path / "other", architectures=["Qwen3MoeForCausalLM"])
    assert fit_findings(PyTorchEngineSpec(provider="pytorch", dir=other)) == []


def test_beams_of_the_pytorch_backend_share_no_blocks(tmp_path: Path) -> None:
    plain = {"provider": "pytorch", "dir": write_checkpoint(tmp_path / "checkpoint"), "max_seq_len": 1024}
    beams = {"max_beam_width": 4, "sampler": "trtllm", "is_overlap_scheduler": False}
    spec = PyTorchEngineSpec.model_validate(plain | beams | {"num_kv_blocks": 127})
    [finding] = fit_findings(spec)
    assert "takes 128 blocks of 32 tokens, and the KV cache has 127" in finding.found
    assert fit_findings(spec.model_copy(update={"num_kv_blocks": 128})) == []


def info(**changes: Any) -> EngineInfo:
    plain: dict[str, Any] = {
        "provider": "tensorrt", "vocab_size": 100, "max_seq_len": 4096, "end_ids": (2,), "kv_block_tokens": 32,
        "num_kv_blocks": 1000, "max_num_seqs": 8, "max_num_batched_tokens": 1024, "supported": frozenset(),
    }  # fmt: skip
    return EngineInfo(**plain | changes)


def test_a_prompt_beyond_one_step_is_refused_where_it_cannot_be_chunked() -> None:
    request = GenerationRequest(key=1, input_ids=[1] * 1025, sampling=SamplingParams(max_tokens=1))
    unchunked = info(max_prompt_tokens=1024, supported=frozenset(SamplingParams.__struct_fields__))
    with pytest.raises(RequestError, match=r"1025 prompt tokens > 1024, which this engine prefills in one step"):
        refuse_unservable(request, unchunked)
    refuse_unservable(request, info(supported=frozenset(SamplingParams.__struct_fields__)))


def test_a_cache_that_turned_out_too_small_for_a_sequence_is_refused_at_load(tmp_path: Path) -> None:
    whole = whole_sequence_of(spec_of(write_built(tmp_path / "engine")))
    refuse_short_cache(whole, info(num_kv_blocks=128))
    with pytest.raises(SpecError, match=r"engine\.max_seq_len \(4096\) is more than the memory left") as caught:
        refuse_short_cache(whole, info(num_kv_blocks=127))
    assert "lower max_seq_len to 4033" in caught.value.message  # a block for the output, 126 for the prompt
    loaded = load(tmp_path / "engine", dataclasses.replace(options_of(spec_of(tmp_path / "engine")), num_kv_blocks=127))
    assert loaded.max_seq_len == 4033


def test_render_refuses_an_engine_that_is_here_and_was_not_built_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_built(tmp_path / "engine", **NOT_PAGED)
    deployment = tmp_path / "mine.yaml"
    deployment.write_text(
        "name: mine\ntokenizer: {dir: tokenizer}\nengine: {provider: tensorrt, dir: engine, max_seq_len: 4096}\n"
    )
    argv = [f"--deployment={deployment}", f"--out={tmp_path / 'models'}"]
    with pytest.raises(SystemExit) as ended:
        run_command("render", argv)
    assert ended.value.code == 2
    assert "engine.is_chunked_prefill (True) needs paged context attention" in capsys.readouterr().err
    assert not (tmp_path / "models").exists()
    deployment.write_text(
        deployment.read_text().replace("4096}", "4096, is_chunked_prefill: false, is_block_reuse: false}")
    )
    with pytest.raises(SystemExit) as ended:
        run_command("render", argv)
    assert not ended.value.code
