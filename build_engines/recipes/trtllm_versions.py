# SPDX-License-Identifier: Apache-2.0
"""The abilities of TensorRT-LLM's versions: those whose command lines are known here, and what each back end lacks.

Sources: TensorRT-LLM's documentation and source of 1.1 and 1.2, Triton's compatibility matrix; as facts with their
commits in `tests/fakes/trtllm_facts`, with which a test compares.
"""

import re
from typing import NamedTuple


class Version(NamedTuple):
    """A version of TensorRT-LLM."""

    tensorrt: str  # an engine loads in exactly this one
    containers: str  # tags of nvcr.io/nvidia/tritonserver


VERSIONS = {
    "1.1.0": Version("10.13.3.9", "25.12 to 26.02"),
    "1.2.0": Version("10.14.1.48", "26.03"),
    "1.2.1": Version("10.14.1.48", "26.04 to 26.07"),
}
LAST_WITH_ENGINES = "1.2.1"
FIRST_WITHOUT_ENGINES = (1, 3)

# Our names of formats as `--qformat` of quantize.py and of ModelOpt's hf_ptq.py has them.
QUANTIZE_FORMATS = {
    "fp16": "full_prec",
    "bf16": "full_prec",
    "int8_weight_only": "int8_wo",
    "int4_weight_only": "int4_wo",
    "smoothquant": "int8_sq",
    "int4_awq": "int4_awq",
    "w4a8_awq": "w4a8_awq",
    "fp8": "fp8",
    "fp8_rowwise": "fp8_pc_pt",
    "nvfp4": "nvfp4",
}
HF_PTQ_FORMATS = {
    "int4_awq": "int4_awq",
    "w4a8_awq": "w4a8_awq",
    "fp8": "fp8",
    "fp8_block": "fp8_pb_wo",
    "nvfp4": "nvfp4",
}
# What a checkpoint of the format says of itself: `quantization.quant_algo` in config.json or hf_quant_config.json.
QUANT_ALGOS = {
    "fp16": (None,),
    "bf16": (None,),
    "int8_weight_only": ("W8A16",),
    "int4_weight_only": ("W4A16",),
    "smoothquant": (
        "W8A8_SQ_PER_CHANNEL", "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN",
        "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN", "W8A8_SQ_PER_TENSOR_PLUGIN",
    ),
    "int4_awq": ("W4A16_AWQ",),
    "int4_gptq": ("W4A16_GPTQ",),
    "w4a8_awq": ("W4A8_AWQ",),
    "fp8": ("FP8",),
    "fp8_rowwise": ("FP8_PER_CHANNEL_PER_TOKEN",),
    "fp8_block": ("FP8_BLOCK_SCALES", "FP8_PB_WO"),
    "nvfp4": ("NVFP4",),
}  # fmt: skip
KV_QUANT_ALGOS = {"auto": None, "fp16": None, "int8": "INT8", "fp8": "FP8", "nvfp4": "NVFP4"}

ENGINE_FORMATS = frozenset(QUANTIZE_FORMATS) | {"int4_gptq"}
ENGINE_KV_FORMATS = frozenset({"auto", "fp16", "int8", "fp8"})
ENGINE_SPECULATION = frozenset({"medusa", "lookahead", "draft_tokens_external", "eagle", "explicit_draft_tokens"})
PYTORCH_FORMATS = frozenset({"fp16", "bf16", "fp8", "fp8_rowwise", "fp8_block", "nvfp4", "int4_awq", "w4a8_awq"})
PYTORCH_KV_FORMATS = frozenset({"auto", "fp16", "fp8", "nvfp4"})
PYTORCH_SPECULATION = frozenset({"ngram", "mtp", "eagle3", "draft_target"})

# AWQ searches for as long as it has samples: quantize.py takes no more than these, whatever it is told.
AWQ_NUM_SAMPLES = 32
# PluginConfig.validate: refused on Blackwell.
NOT_ON_SM_100 = (
    "gemm_swiglu_plugin", "fp8_rowwise_gemm_plugin", "low_latency_gemm_plugin", "low_latency_gemm_swiglu_plugin",
)  # fmt: skip

# Where `build` of tensorrt_llm/builder.py leaves reduce_fusion as it is asked for; else it turns it off.
REDUCE_FUSION_FAMILIES = frozenset({"LlamaForCausalLM", "Gemma2ForCausalLM", "MedusaForCausalLM"})

# Architectures by the script of upstream's examples that converts them; its flags are known here.
LLAMA_SCRIPT = "models/core/llama/convert_checkpoint.py"
QUANTIZE_SCRIPT = "quantization/quantize.py"
LLAMA_FAMILY = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"})
# Others have scripts of their own, with flags of their own; quantize.py, which loads any of these, also writes them
# without quantization, so it converts them.
QUANTIZE_FAMILIES = frozenset(
    {
        "Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM",
        "Phi3ForCausalLM", "FalconForCausalLM", "GPTJForCausalLM",
    }
)  # fmt: skip


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (1, 2, 1) for 1.2.1 and 1.2.1rc3."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()
