# SPDX-License-Identifier: Apache-2.0
"""Our rules of what an engine can do are those by which upstream builds and loads: the whole table is compared."""

import argparse
import functools
import itertools
from typing import Any

import pytest
import trtllm_builder
from trtllm_builder import BuildRefused, engine_config
from trtllm_tools import flags_of, parser_of

from build_engines.checkpoint.gpus import gpus
from build_engines.checkpoint.weight_formats import KV_FORMAT_SMS, WEIGHT_FORMATS
from build_engines.recipes.trtllm_versions import KV_QUANT_ALGOS, QUANT_ALGOS
from ensemble_configs.releases.context_attention import longest_prompt, why_not_on_pytorch, why_not_paged

SMS = sorted({gpu.sm for gpu in gpus().values()})
KV_FORMATS = ("auto", "int8", "fp8")


@functools.cache
def build_parser() -> argparse.ArgumentParser:
    return parser_of(flags_of("trtllm-build"))


def build_arguments(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(["--max_seq_len", "4096", *words])


def checkpoint(quant_algo: str | None, kv_algo: str | None, **changes: Any) -> dict[str, Any]:
    """Return the config.json of a converted checkpoint, as far as the builder reads it."""
    mapping = {"world_size": 2, "tp_size": 2, "pp_size": 1}
    return {
        "architecture": "LlamaForCausalLM", "dtype": "bfloat16", "vocab_size": 32000, "max_position_embeddings": 8192,
        "mapping": mapping, "quantization": {"quant_algo": quant_algo, "kv_cache_quant_algo": kv_algo},
    } | changes  # fmt: skip


@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize("kv_format", KV_FORMATS)
@pytest.mark.parametrize("weight_format", WEIGHT_FORMATS)
def test_paged_context_attention_is_what_the_builder_leaves_on(weight_format: str, kv_format: str, sm: int) -> None:
    is_legal = (
        sm in WEIGHT_FORMATS[weight_format].sms and sm in KV_FORMAT_SMS["fp16" if kv_format == "auto" else kv_format]
    )
    try:
        engine = engine_config(
            build_arguments(), checkpoint(QUANT_ALGOS[weight_format][0], KV_QUANT_ALGOS[kv_format]), sm=sm
        )
    except BuildRefused:
        assert not is_legal, "the tables say that this GPU runs it"
        return
    is_paged = engine["build_config"]["plugin_config"]["use_paged_context_fmha"]
    assert is_paged == (why_not_paged(weight_format, kv_format, sm) is None)


def test_the_table_has_both_answers_for_each_rule() -> None:
    reasons = {why_not_paged(weight, kv, sm) for weight, kv, sm in itertools.product(WEIGHT_FORMATS, KV_FORMATS, SMS)}
    assert None in reasons
    for words in ("INT8 KV cache", "needs weights in fp8, nvfp4, w4a8_awq", "needs SM 89 or later"):
        assert any(words in str(reason) for reason in reasons), words


def test_int4_awq_with_an_fp8_cache_is_for_engines_only() -> None:
    reason = why_not_on_pytorch("int4_awq", "fp8")
    assert reason is not None
    assert "no attention kernel" in reason
    assert [why_not_on_pytorch(*each) for each in (("int4_awq", "auto"), ("fp8", "fp8"), ("w4a8_awq", "fp8"))] == [
        None
    ] * 3


@pytest.mark.parametrize(
    ("is_chunked", "tokens"), [(True, 12287), (False, 8192)], ids=["in chunks", "in one step of 8192"]
)
def test_without_chunks_a_prompt_has_no_more_tokens_than_a_step(is_chunked: bool, tokens: int) -> None:
    assert longest_prompt(12288, 8192, is_chunked=is_chunked) == tokens
    assert longest_prompt(4096, 8192, is_chunked=is_chunked) == 4095


# What each behaviour of the builder changes: words of the command line, of the checkpoint, and the place that changes.
MEDUSA = ("--speculative_decoding_mode", "medusa", "--max_draft_len", "63")
CASES: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "paged_state_off": ((), {}, "plugin_config.paged_state"),
    "max_input_len_clipped": (("--max_input_len", "5000"), {}, "max_input_len"),
    "max_num_tokens_lowered": (("--max_batch_size", "1"), {}, "max_num_tokens"),
    "max_num_tokens_holds_a_block": (("--max_num_tokens", "8"), {}, "max_num_tokens"),
    "opt_num_tokens_chosen": ((), {}, "opt_num_tokens"),
    "opt_num_tokens_lowered": (("--opt_num_tokens", "9000"), {}, "opt_num_tokens"),
    "reduce_fusion_off": (
        ("--reduce_fusion", "enable"), {"architecture": "Qwen2ForCausalLM"}, "plugin_config.reduce_fusion",
    ),
    "user_buffer_off": (("--user_buffer", "enable"), {}, "plugin_config.user_buffer"),
    "norm_quant_fusion_off": (("--norm_quant_fusion", "enable"), {}, "plugin_config.norm_quant_fusion"),
    "drafts_of_checkpoint": (("--speculative_decoding_mode", "medusa"), {"max_draft_len": 63}, "max_draft_len"),
    "drafts_lengthen_max_seq_len": (MEDUSA, {}, "max_seq_len"),
    "drafts_raise_max_num_tokens": (MEDUSA, {}, "max_num_tokens"),
    "no_context_fmha_no_paged": (("--context_fmha", "disable"), {}, "plugin_config.use_paged_context_fmha"),
    "fp8_context_off_beside_other_weights": ((), {}, "plugin_config.use_fp8_context_fmha"),
    "fp8_cache_not_paged_beside_other_weights": (
        (), {"algos": ("W4A16_AWQ", "FP8")}, "plugin_config.use_paged_context_fmha",
    ),
    "fp8_context_off_before_sm_89": ((), {"algos": ("FP8", None), "sm": 86}, "plugin_config.use_fp8_context_fmha"),
    "fp8_cache_not_paged_before_sm_89": (
        (), {"algos": ("FP8", "FP8"), "sm": 86}, "plugin_config.use_paged_context_fmha",
    ),
    "fp8_context_off_without_fp8_cache": ((), {"algos": ("FP8", None)}, "plugin_config.use_fp8_context_fmha"),
    "fp8_context_on_with_fp8_cache": (
        ("--use_fp8_context_fmha", "disable"), {"algos": ("FP8", "FP8")}, "plugin_config.use_fp8_context_fmha",
    ),
    "int8_cache_not_paged": ((), {"algos": (None, "INT8")}, "plugin_config.use_paged_context_fmha"),
    "eagle_turns_paged_on": (
        ("--speculative_decoding_mode", "eagle", "--max_draft_len", "4", "--use_paged_context_fmha", "disable"), {},
        "plugin_config.use_paged_context_fmha",
    ),
    "nccl_by_world_size": (
        (), {"mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1}}, "plugin_config.nccl_plugin",
    ),
    "plugins_of_quantization": (
        (), {"algos": ("W4A16_AWQ", None)}, "plugin_config.weight_only_groupwise_quant_matmul_plugin",
    ),
    "nvfp4_gemm_plugin": (
        ("--gemm_plugin", "auto"), {"algos": ("NVFP4", "FP8"), "sm": 100}, "plugin_config.gemm_plugin",
    ),
}  # fmt: skip


@pytest.mark.parametrize("behaviour", trtllm_builder.BEHAVIOURS)
def test_each_behaviour_of_the_builder_changes_one_setting_and_can_be_left_out(behaviour: str) -> None:
    words, changes, place = CASES[behaviour]
    given = dict(changes)
    algos, sm = given.pop("algos", (None, None)), given.pop("sm", 90)

    def built(*off: str) -> object:
        found: Any = engine_config(build_arguments(*words), checkpoint(*algos, **given), sm=sm, off=off)["build_config"]
        for key in place.split("."):
            found = found[key]
        return found

    assert built() != built(behaviour)
