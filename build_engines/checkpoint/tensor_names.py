# SPDX-License-Identifier: Apache-2.0
"""Names of tensors in checkpoints, by architecture.

Sources: the safetensors files that each family publishes.
"""


def tensor_names(architecture: str) -> dict[str, str]:
    """Return an architecture's names of tensors by our names; ``{l}`` stands for the layer, ``{e}`` for the expert."""
    return _NAMES.get(architecture, _LLAMA_NAMES)


_LAYER = "model.layers.{l}"
_LLAMA_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
    "input_norm": f"{_LAYER}.input_layernorm.weight",
    "post_norm": f"{_LAYER}.post_attention_layernorm.weight",
    "query": f"{_LAYER}.self_attn.q_proj.weight",
    "key": f"{_LAYER}.self_attn.k_proj.weight",
    "value": f"{_LAYER}.self_attn.v_proj.weight",
    "output": f"{_LAYER}.self_attn.o_proj.weight",
    "query_norm": f"{_LAYER}.self_attn.q_norm.weight",
    "key_norm": f"{_LAYER}.self_attn.k_norm.weight",
    "gate": f"{_LAYER}.mlp.gate_proj.weight",
    "up": f"{_LAYER}.mlp.up_proj.weight",
    "down": f"{_LAYER}.mlp.down_proj.weight",
    "router": f"{_LAYER}.mlp.gate.weight",
    "expert_gate": f"{_LAYER}.mlp.experts.{{e}}.gate_proj.weight",
    "expert_up": f"{_LAYER}.mlp.experts.{{e}}.up_proj.weight",
    "expert_down": f"{_LAYER}.mlp.experts.{{e}}.down_proj.weight",
}
_FOUR_NORMS = {
    "pre_mlp_norm": f"{_LAYER}.pre_feedforward_layernorm.weight",
    "post_mlp_norm": f"{_LAYER}.post_feedforward_layernorm.weight",
}
_BLOCK = "transformer.h.{l}"
_LATENT_NAMES = {
    "query_down": f"{_LAYER}.self_attn.q_a_proj.weight",
    "query_down_norm": f"{_LAYER}.self_attn.q_a_layernorm.weight",
    "query_up": f"{_LAYER}.self_attn.q_b_proj.weight",
    "kv_down": f"{_LAYER}.self_attn.kv_a_proj_with_mqa.weight",
    "kv_down_norm": f"{_LAYER}.self_attn.kv_a_layernorm.weight",
    "kv_up": f"{_LAYER}.self_attn.kv_b_proj.weight",
}
_SHARED_EXPERT_NAMES = {
    "router_bias": f"{_LAYER}.mlp.gate.e_score_correction_bias",
    "shared_gate": f"{_LAYER}.mlp.shared_experts.gate_proj.weight",
    "shared_up": f"{_LAYER}.mlp.shared_experts.up_proj.weight",
    "shared_down": f"{_LAYER}.mlp.shared_experts.down_proj.weight",
}
_GATED_SHARED_EXPERT_NAMES = {
    "shared_gate": f"{_LAYER}.mlp.shared_expert.gate_proj.weight",
    "shared_up": f"{_LAYER}.mlp.shared_expert.up_proj.weight",
    "shared_down": f"{_LAYER}.mlp.shared_expert.down_proj.weight",
    "shared_router": f"{_LAYER}.mlp.shared_expert_gate.weight",
}
_LINEAR_NAMES = {
    "linear_in": f"{_LAYER}.linear_attn.in_proj_qkvz.weight",
    "linear_gates": f"{_LAYER}.linear_attn.in_proj_ba.weight",
    "conv": f"{_LAYER}.linear_attn.conv1d.weight",
    "decay": f"{_LAYER}.linear_attn.A_log",
    "time_step": f"{_LAYER}.linear_attn.dt_bias",
    "linear_norm": f"{_LAYER}.linear_attn.norm.weight",
    "linear_output": f"{_LAYER}.linear_attn.out_proj.weight",
}
_LLAMA4 = f"{_LAYER}.feed_forward"
_LLAMA4_NAMES = {
    "gate": f"{_LLAMA4}.gate_proj.weight",
    "up": f"{_LLAMA4}.up_proj.weight",
    "down": f"{_LLAMA4}.down_proj.weight",
    "router": f"{_LLAMA4}.router.weight",
    "all_gate_up": f"{_LLAMA4}.experts.gate_up_proj",
    "all_down": f"{_LLAMA4}.experts.down_proj",
    "shared_gate": f"{_LLAMA4}.shared_expert.gate_proj.weight",
    "shared_up": f"{_LLAMA4}.shared_expert.up_proj.weight",
    "shared_down": f"{_LLAMA4}.shared_expert.down_proj.weight",
}
_JOINED_EXPERT_NAMES = {
    "all_gate_up": f"{_LAYER}.mlp.experts.gate_up_proj",
    "all_down": f"{_LAYER}.mlp.experts.down_proj",
}


def _behind(prefix: str, names: dict[str, str]) -> dict[str, str]:
    """Return names of a text part that is a model within a model."""
    return {key: prefix + name for key, name in names.items()}


def _within(names: dict[str, str]) -> dict[str, str]:
    """Return names of a text part beside a vision tower, with a head outside both."""
    return {key: name.replace("model.", "model.language_model.", 1) for key, name in names.items()}


# By architecture, what differs from Llama's names.
_NAMES = {
    architecture: _LLAMA_NAMES | names
    for architecture, names in {
        "DeepseekV2ForCausalLM": _LATENT_NAMES | _SHARED_EXPERT_NAMES,
        "DeepseekV3ForCausalLM": _LATENT_NAMES | _SHARED_EXPERT_NAMES,
        "Gemma2ForCausalLM": _FOUR_NORMS,
        "Gemma3ForCausalLM": _FOUR_NORMS,
        "Gemma3ForConditionalGeneration": _behind("language_model.", _LLAMA_NAMES | _FOUR_NORMS),
        "Glm4MoeForCausalLM": _SHARED_EXPERT_NAMES,
        "Llama4ForCausalLM": _LLAMA4_NAMES,
        "Llama4ForConditionalGeneration": _behind("language_model.", _LLAMA_NAMES | _LLAMA4_NAMES),
        "Mistral3ForConditionalGeneration": _behind("language_model.", _LLAMA_NAMES),
        "Qwen3VLForConditionalGeneration": _within(_LLAMA_NAMES),
        "Qwen3VLMoeForConditionalGeneration": _within(_LLAMA_NAMES | _JOINED_EXPERT_NAMES),
        "MixtralForCausalLM": {
            "router": f"{_LAYER}.block_sparse_moe.gate.weight",
            "expert_gate": f"{_LAYER}.block_sparse_moe.experts.{{e}}.w1.weight",
            "expert_down": f"{_LAYER}.block_sparse_moe.experts.{{e}}.w2.weight",
            "expert_up": f"{_LAYER}.block_sparse_moe.experts.{{e}}.w3.weight",
        },
        "Qwen2MoeForCausalLM": _GATED_SHARED_EXPERT_NAMES,
        "Qwen3NextForCausalLM": _GATED_SHARED_EXPERT_NAMES | _LINEAR_NAMES,
        "Phi3ForCausalLM": {
            "qkv": f"{_LAYER}.self_attn.qkv_proj.weight",
            "gate_up": f"{_LAYER}.mlp.gate_up_proj.weight",
        },
        "GptOssForCausalLM": {
            "sinks": f"{_LAYER}.self_attn.sinks",
            "router": f"{_LAYER}.mlp.router.weight",
            "router_bias": f"{_LAYER}.mlp.router.bias",
            **_JOINED_EXPERT_NAMES,
        },
        "FalconForCausalLM": {
            "embedding": "transformer.word_embeddings.weight",
            "final_norm": "transformer.ln_f.weight",
            "input_norm": f"{_BLOCK}.input_layernorm.weight",
            "post_norm": f"{_BLOCK}.post_attention_layernorm.weight",
            "attention_norm": f"{_BLOCK}.ln_attn.weight",
            "mlp_norm": f"{_BLOCK}.ln_mlp.weight",
            "qkv": f"{_BLOCK}.self_attention.query_key_value.weight",
            "output": f"{_BLOCK}.self_attention.dense.weight",
            "up": f"{_BLOCK}.mlp.dense_h_to_4h.weight",
            "down": f"{_BLOCK}.mlp.dense_4h_to_h.weight",
        },
        "GPTJForCausalLM": {
            "embedding": "transformer.wte.weight",
            "final_norm": "transformer.ln_f.weight",
            "input_norm": f"{_BLOCK}.ln_1.weight",
            "query": f"{_BLOCK}.attn.q_proj.weight",
            "key": f"{_BLOCK}.attn.k_proj.weight",
            "value": f"{_BLOCK}.attn.v_proj.weight",
            "output": f"{_BLOCK}.attn.out_proj.weight",
            "up": f"{_BLOCK}.mlp.fc_in.weight",
            "down": f"{_BLOCK}.mlp.fc_out.weight",
        },
    }.items()
}
