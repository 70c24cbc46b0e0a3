# SPDX-License-Identifier: Apache-2.0
"""Small checkpoints of random weights, one for each way a layer is built; equal on every machine."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from build_engines.checkpoint.checkpoint_config import read_model_shape
from build_engines.checkpoint.weight_table import Role, Weight, weights_of

Config = dict[str, object]

_BASE: Config = {
    "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 8,
    "num_key_value_heads": 2, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "max_position_embeddings": 64, "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": 0,
    "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip

TINY: dict[str, Config] = {
    "llama-biases": _BASE | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 50, "attention_bias": True,
        "mlp_bias": True,
    },
    "mistral-window": _BASE | {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": 50, "sliding_window": 4,
    },
    "qwen2-mqa": _BASE | {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 49, "num_key_value_heads": 1,
        "tie_word_embeddings": True,
    },
    "qwen3": _BASE | {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 48, "head_dim": 12,
    },
    "phi3": _BASE | {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "vocab_size": 51},
    "mixtral": _BASE | {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 50, "num_local_experts": 4,
        "num_experts_per_tok": 2, "sliding_window": None,
    },
    "qwen2-moe": _BASE | {
        "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "vocab_size": 50, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 20,
        "decoder_sparse_step": 2, "norm_topk_prob": False,
    },
    "qwen3-moe": _BASE | {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 50, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1, "norm_topk_prob": True,
    },
    "qwen3-next": _BASE | {
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "vocab_size": 50,
        "full_attention_interval": 2, "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 8,
        "linear_value_head_dim": 6, "linear_conv_kernel_dim": 4, "partial_rotary_factor": 0.5, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 20,
        "decoder_sparse_step": 1, "norm_topk_prob": True,
    },
    "deepseek": _BASE | {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 51,
        "num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
        "v_head_dim": 5, "moe_intermediate_size": 8, "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 4,
        "topk_group": 2, "num_experts_per_tok": 3, "first_k_dense_replace": 1, "norm_topk_prob": True,
        "routed_scaling_factor": 2.5, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    },
}  # fmt: skip
del TINY["deepseek"]["head_dim"]


def write_tiny(folder: Path, name: str) -> Path:
    """Write the checkpoint of a name into a folder, which is made."""
    return write_checkpoint(folder, TINY[name], random_tensors(TINY[name]))


def random_tensors(config: Config, seed: int = 4) -> dict[str, npt.NDArray[np.float32]]:
    """Return a model's tensors; the scales keep hidden states near 1, so that nothing hides behind a small factor."""
    generator = np.random.default_rng(seed)
    model = read_model_shape(config)
    # Qwen3-Next adds 1 to what is stored of its norms, but for those within linear attention.
    has_offset = model.architecture == "Qwen3NextForCausalLM"
    return {
        weight.name: _random(weight, generator, norm=0 if has_offset and ".linear_attn." not in weight.name else 1)
        for weight in weights_of(model)
    }


def _random(weight: Weight, generator: np.random.Generator, *, norm: float) -> npt.NDArray[np.float32]:
    values = generator.standard_normal(weight.shape)
    if weight.role is Role.NORM:
        values = norm + 0.2 * values
    elif weight.is_bias:
        values *= 0.3
    elif weight.role is not Role.EMBEDDING:
        values /= weight.shape[-1] ** 0.5
    return values.astype(np.float32)


def write_checkpoint(
    folder: Path,
    config: Mapping[str, object],
    tensors: Mapping[str, npt.NDArray[np.generic]],
    file: str = "model.safetensors",
) -> Path:
    """Write a checkpoint's folder: `config.json` and one file of tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / file).write_bytes(safetensors_bytes(tensors))
    return folder


_TYPES = {
    "float32": "F32", "float16": "F16", "uint16": "BF16", "float64": "F64", "int32": "I32", "uint8": "U8", "int8": "I8",
}  # fmt: skip


def safetensors_bytes(tensors: Mapping[str, npt.NDArray[np.generic]]) -> bytes:
    """Return a safetensors file; uint16 stands for BF16."""
    header, data = {}, b""
    for name, values in tensors.items():
        raw = np.ascontiguousarray(values).tobytes()
        header[name] = {
            "dtype": _TYPES[values.dtype.name],
            "shape": list(values.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def weights_hash(checkpoint: Path) -> str:
    """Return the SHA-256 of the file of tensors."""
    return hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()
