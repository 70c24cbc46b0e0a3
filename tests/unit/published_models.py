# SPDX-License-Identifier: Apache-2.0
"""`config.json` of known models, written by hand from their published facts, and their numbers of parameters."""

from typing import NamedTuple


class Published(NamedTuple):
    """One model; `num_parameters` is what its publisher's safetensors index states."""

    config: dict[str, object]
    num_parameters: int


def _llama(**values: object) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 128256,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
    } | values


def _qwen2(**values: object) -> dict[str, object]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "vocab_size": 152064,
        "tie_word_embeddings": False,
        "max_position_embeddings": 32768,
        "sliding_window": 131072,
        "use_sliding_window": False,
        "max_window_layers": 28,
        "torch_dtype": "bfloat16",
    } | values


PUBLISHED = {
    "llama-2-7b": Published(
        _llama(
            vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32,
            num_key_value_heads=32, max_position_embeddings=4096,
        ),
        6_738_415_616,
    ),
    "llama-2-70b": Published(
        _llama(
            vocab_size=32000, hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64,
            max_position_embeddings=4096,
        ),
        68_976_648_192,
    ),
    "llama-3.1-8b": Published(
        _llama(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32), 8_030_261_248
    ),
    "llama-3.1-70b": Published(
        _llama(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64), 70_553_706_496
    ),
    "llama-3.1-405b": Published(
        _llama(hidden_size=16384, intermediate_size=53248, num_hidden_layers=126, num_attention_heads=128),
        405_853_388_800,
    ),
    "mixtral-8x7b": Published(
        {
            "architectures": ["MixtralForCausalLM"], "vocab_size": 32000, "hidden_size": 4096,
            "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None,
            "max_position_embeddings": 32768, "tie_word_embeddings": False,
        },
        46_702_792_704,
    ),
    "mixtral-8x22b": Published(
        {
            "architectures": ["MixtralForCausalLM"], "vocab_size": 32768, "hidden_size": 6144,
            "intermediate_size": 16384, "num_hidden_layers": 56, "num_attention_heads": 48, "num_key_value_heads": 8,
            "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None,
            "max_position_embeddings": 65536, "tie_word_embeddings": False,
        },
        140_630_071_296,
    ),
    "qwen2.5-0.5b": Published(
        _qwen2(
            vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
            num_key_value_heads=2, tie_word_embeddings=True,
        ),
        494_032_768,
    ),
    "qwen2.5-7b": Published(
        _qwen2(
            hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
            num_key_value_heads=4,
        ),
        7_615_616_512,
    ),
    "qwen2.5-72b": Published(
        _qwen2(
            hidden_size=8192, intermediate_size=29568, num_hidden_layers=80, num_attention_heads=64,
            num_key_value_heads=8,
        ),
        72_706_203_648,
    ),
    "qwen3-30b-a3b": Published(
        {
            "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 151936, "hidden_size": 2048,
            "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
            "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
            "num_experts_per_tok": 8, "decoder_sparse_step": 1, "tie_word_embeddings": False,
        },
        30_532_122_624,
    ),
    "deepseek-v3": Published(
        {
            "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 129280, "hidden_size": 7168,
            "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
            "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256, "n_shared_experts": 1,
            "num_experts_per_tok": 8, "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "topk_method": "noaux_tc",
            "tie_word_embeddings": False, "max_position_embeddings": 163840,
        },
        671_026_419_200,  # without the layer that predicts a second token
    ),
    "gpt-oss-20b": Published(
        {
            "architectures": ["GptOssForCausalLM"], "vocab_size": 201088, "hidden_size": 2880,
            "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8,
            "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
            "tie_word_embeddings": False,
        },
        20_914_757_184,
    ),
    "gemma-2-9b": Published(
        {
            "architectures": ["Gemma2ForCausalLM"], "vocab_size": 256000, "hidden_size": 3584,
            "intermediate_size": 14336, "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8,
            "head_dim": 256, "sliding_window": 4096, "max_position_embeddings": 8192,
        },
        9_241_705_984,
    ),
    "phi-3-mini": Published(
        {
            "architectures": ["Phi3ForCausalLM"], "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "sliding_window": 2047,
            "tie_word_embeddings": False,
        },
        3_821_079_552,
    ),
    "falcon-7b": Published(
        {
            "architectures": ["FalconForCausalLM"], "vocab_size": 65024, "hidden_size": 4544,
            "num_hidden_layers": 32, "num_attention_heads": 71, "multi_query": True, "parallel_attn": True,
            "bias": False,
        },
        6_921_720_704,
    ),
    "falcon-180b": Published(
        {
            "architectures": ["FalconForCausalLM"], "vocab_size": 65024, "hidden_size": 14848,
            "num_hidden_layers": 80, "num_attention_heads": 232, "num_kv_heads": 8, "new_decoder_architecture": True,
            "parallel_attn": True, "bias": False, "tie_word_embeddings": False,
        },
        179_522_565_120,
    ),
    "gpt-j-6b": Published(
        {
            "architectures": ["GPTJForCausalLM"], "vocab_size": 50400, "n_embd": 4096, "n_layer": 28, "n_head": 16,
            "n_positions": 2048, "tie_word_embeddings": False,
        },
        6_050_882_784,
    ),
}  # fmt: skip
