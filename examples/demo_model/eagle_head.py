# SPDX-License-Identifier: Apache-2.0
"""An EAGLE-3 head of the target: one layer that drafts from the target's hidden states, as it is trained and stored.

Source: Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test", 2025;
the names in the checkpoint are vLLM's (`vllm/model_executor/models/llama_eagle3.py` of 0.32.0).
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

# The head reads what goes into these layers of the target: early, in the middle, late.
LAYERS = (1, 3, 4)


class _Attention(nn.Module):
    """The projections of the head's attention, which reads a token's embedding beside a hidden state."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        width, head = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(2 * width, config.num_attention_heads * head, bias=False)
        self.k_proj = nn.Linear(2 * width, config.num_key_value_heads * head, bias=False)
        self.v_proj = nn.Linear(2 * width, config.num_key_value_heads * head, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * head, width, bias=False)


class _Layer(nn.Module):
    """The head's one layer."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = _Attention(config)
        self.mlp = LlamaMLP(config)


class EagleHead(nn.Module):
    """The head.

    Args:
        config: of the target.
        draft_ids: [drafts] int64, ascending: the tokens of the target that the head can draft.
    """

    def __init__(self, config: LlamaConfig, draft_ids: Tensor) -> None:
        super().__init__()
        self.config, self.draft_ids = config, draft_ids
        self.fc = nn.Linear(len(LAYERS) * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = _Layer(config)
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, len(draft_ids), bias=False)
        self._rotary = LlamaRotaryEmbedding(config)

    def forward(
        self, embeddings: Tensor, hidden_states: Tensor, positions: Tensor, mask: Tensor, *, num_steps: int
    ) -> list[Tensor]:
        """Return the logits of each step of drafting, ``[batch, tokens, drafts]``, as they are when it drafts.

        In the first step a place reads the hidden states of its own token, which the target has computed, and the
        embedding of the next token, and drafts the token behind that. In each further step a place reads what the head
        itself computed one place and one step before, and sees places by hidden states of the target only as far as
        the target had come.

        Args:
            embeddings: [batch, tokens, width] of the next token of each place.
            hidden_states: [batch, tokens, width of `LAYERS` together] of the target.
            positions: [batch, tokens] int64.
            mask: [batch, 1, tokens, tokens] bool, true where a query (dim 2) may attend to a key (dim 3).
            num_steps: drafts in a row.
        """
        layer, num_groups = self.midlayer, self.config.num_attention_heads // self.config.num_key_value_heads
        cos, sin = self._rotary(embeddings, positions)
        embeddings = layer.input_layernorm(embeddings)
        hidden = self.fc(hidden_states)
        behind = torch.arange(mask.shape[-1])
        distance = behind[:, None] - behind[None, :]
        keys: list[Tensor] = []
        values: list[Tensor] = []
        logits: list[Tensor] = []
        for step in range(num_steps):
            taken = torch.cat([embeddings, layer.hidden_norm(hidden)], dim=-1)
            query, key, value = (
                projection(taken).unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)
                for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
            )
            query, key = apply_rotary_pos_emb(query, key, cos, sin)
            keys.append(key.repeat_interleave(num_groups, dim=1))
            values.append(value.repeat_interleave(num_groups, dim=1))
            scores = query @ keys[0].transpose(-1, -2)
            scores = scores.masked_fill(~(mask & (distance >= step)), float("-inf"))
            own = [_moved(keys[earlier], step - earlier) for earlier in range(1, step + 1)]
            shares = torch.cat([scores, *[(query * each).sum(-1, keepdim=True) for each in own]], dim=-1)
            shares = (shares.float() / self.config.head_dim**0.5).softmax(-1).nan_to_num().to(query.dtype)
            mixed = shares[..., : mask.shape[-1]] @ values[0]
            for earlier in range(1, step + 1):
                share = shares[..., mask.shape[-1] + earlier - 1, None]
                mixed = mixed + share * _moved(values[earlier], step - earlier)
            hidden = hidden + layer.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            logits.append(self.lm_head(self.norm(hidden)))
            hidden = _moved(hidden, 1)
        return logits

    def save(self, directory: Path) -> None:
        """Write the head in bf16 with its config; the embeddings are the target's."""
        directory.mkdir(parents=True, exist_ok=True)
        weights = {name: weight.to(torch.bfloat16).contiguous() for name, weight in self.state_dict().items()}
        weights["d2t"] = self.draft_ids - torch.arange(len(self.draft_ids))
        save_file(weights, directory / "model.safetensors")
        (directory / "model.safetensors").chmod(0o644)  # the safetensors library leaves it readable by its owner only
        config = self.config.to_dict() | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "num_hidden_layers": 1,
            "draft_vocab_size": len(self.draft_ids),
            "eagle_aux_hidden_state_layer_ids": list(LAYERS),
            "tie_word_embeddings": False,
        }
        (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _moved(states: Tensor, places: int) -> Tensor:
    """Return states, ``[..., tokens, width]``, each some places further on; the first ones are zero."""
    return nn.functional.pad(states, (0, 0, places, 0))[..., : states.shape[-2], :] if places else states
