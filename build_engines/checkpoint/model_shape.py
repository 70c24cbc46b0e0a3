# SPDX-License-Identifier: Apache-2.0
"""The parts of a model in numbers: layers, heads, experts and widths, whatever its checkpoint calls them.

How a `config.json` is read into these is `build_engines.checkpoint.checkpoint_config`; what each tensor is called and
how large it is, `build_engines.checkpoint.weight_table`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar


@dataclass(frozen=True)
class GroupedAttention:
    """Attention in which groups of query heads share keys and values: GQA; MQA with one group, MHA with one a head."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_qk_norm: bool = False  # one norm of head_dim for queries and one for keys
    has_sinks: bool = False  # a learned logit a head, beside those of the keys
    has_output_gate: bool = False  # beside each head's query, as many numbers that gate what the head gives

    @property
    def kv_values_per_token(self) -> int:
        """Return the numbers that one token leaves in one layer's KV cache: K and V."""
        return 2 * self.num_kv_heads * self.head_dim

    @property
    def prefill_flops_per_pair(self) -> int:
        """Return the floating point operations of one query meeting one key and its value, in prefill.

        There are two products, with 2 operations a number.
        """
        return 4 * self.num_heads * self.head_dim

    @property
    def decode_flops_per_pair(self) -> int:
        """Return the floating point operations of one query meeting one key and its value, in decode."""
        return self.prefill_flops_per_pair


@dataclass(frozen=True)
class LatentAttention:
    """Attention with keys and values kept as one low-rank vector a token, shared by all heads (MLA)."""

    num_heads: int
    q_lora_rank: int | None  # None: queries come straight from the hidden state
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @property
    def kv_values_per_token(self) -> int:
        """Return the numbers that one token leaves in one layer's KV cache.

        They are the latent vector and the rotary part of the key.
        """
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def prefill_flops_per_pair(self) -> int:
        """Return the floating point operations of one query meeting one key and its value, in prefill.

        Keys and values are unfolded for each head: scores over nope + rope, values over their own width.
        """
        return 2 * self.num_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim)

    @property
    def decode_flops_per_pair(self) -> int:
        """Return the floating point operations of one query meeting one key and its value, in decode.

        The up-projections are absorbed into the queries: scores over latent + rotary, values over the latent.
        """
        return 2 * self.num_heads * (2 * self.kv_lora_rank + self.qk_rope_head_dim)


@dataclass(frozen=True)
class LinearAttention:
    """Attention that keeps one state of constant size for a sequence, and no keys and values (Gated DeltaNet).

    The state is a matrix of key width by value width for each value head, and the last inputs of a causal convolution
    over queries, keys and values.
    """

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel_size: int

    kv_values_per_token: ClassVar[int] = 0  # it has no KV cache
    prefill_flops_per_pair: ClassVar[int] = 0  # and no pairs of tokens
    decode_flops_per_pair: ClassVar[int] = 0

    @property
    def key_size(self) -> int:
        """Return the width of all heads' keys, which is that of their queries."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_size(self) -> int:
        """Return the width of all heads' values, which is that of their gates and of the output."""
        return self.num_value_heads * self.value_head_dim

    @property
    def conv_size(self) -> int:
        """Return the channels of the convolution: queries, keys and values."""
        return 2 * self.key_size + self.value_size

    @property
    def recurrent_state_values(self) -> int:
        """Return the numbers of the matrices that a sequence leaves in one layer."""
        return self.num_value_heads * self.key_head_dim * self.value_head_dim

    @property
    def state_values(self) -> int:
        """Return the numbers that a sequence keeps in one layer: matrices, and inputs of the convolution.

        Source: `MambaCacheManager` of TensorRT-LLM 1.2, `tensorrt_llm/_torch/pyexecutor/mamba_cache_manager.py`.
        """
        return self.recurrent_state_values + self.conv_size * (self.conv_kernel_size - 1)

    @property
    def flops_per_token(self) -> int:
        """Return the floating point operations of one token on the state, in one layer.

        The state decays (1 for each of its numbers), is asked for the key's value, is corrected and is asked for the
        query's (2 each).
        """
        return 7 * self.recurrent_state_values


CachedAttention = GroupedAttention | LatentAttention
Attention = CachedAttention | LinearAttention


@dataclass(frozen=True)
class DenseMlp:
    """A feed-forward network that every token passes."""

    intermediate_size: int
    is_gated: bool = True
    has_bias: bool = False


@dataclass(frozen=True)
class ExpertMlp:
    """A mixture of feed-forward networks, of which a router picks a few for each token."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    shared_intermediate_size: int = 0  # of the experts that see every token, together
    has_shared_gate: bool = False
    has_router_bias: bool = False
    has_bias: bool = False

    def experts_met(self, num_tokens: float) -> float:
        """Return the number of experts that a batch is expected to use.

        Each token chooses evenly: E (1 - (1 - k/E)^n).
        """
        missed: float = (1 - self.experts_per_token / self.num_experts) ** num_tokens
        return self.num_experts * (1 - missed)


Mlp = DenseMlp | ExpertMlp


@dataclass(frozen=True)
class LayerShape:
    """A layer of a decoder: its attention, its window and its feed-forward network."""

    attention: Attention
    mlp: Mlp
    sliding_window: int | None = None  # tokens that it looks back to; None: all

    def kept_tokens(self, num_tokens: int) -> int:
        """Return how many of a sequence's `num_tokens` tokens this layer reads keys and values of."""
        return num_tokens if self.sliding_window is None else min(num_tokens, self.sliding_window)


@dataclass(frozen=True)
class ModelShape:
    """The shape of a decoder model."""

    architecture: str  # as in config.json: LlamaForCausalLM
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerShape, ...]
    is_tied: bool  # the head is the embedding
    max_position_embeddings: int
    dtype: str = "bfloat16"  # of the checkpoint
    norms_per_layer: int = 2
    has_norm_bias: bool = False
    has_head_bias: bool = False
    is_parallel_block: bool = False  # attention and MLP of a layer read the same input: one all-reduce a layer
    has_vision: bool = False  # the checkpoint has a vision tower, too, which is not in this shape

    @property
    def num_layers(self) -> int:
        """Return the number of layers."""
        return len(self.layers)

    @property
    def attention(self) -> CachedAttention:
        """Return the attention of the first layer with a KV cache; layers with one differ in their windows alone."""
        return next(layer.attention for layer in self.layers if not isinstance(layer.attention, LinearAttention))

    @property
    def num_kv_heads(self) -> int:
        """Return the number of heads that the KV cache is split by: of keys and values; 1 with latent attention."""
        return self.attention.num_kv_heads if isinstance(self.attention, GroupedAttention) else 1

    @cached_property
    def expert_layers(self) -> tuple[ExpertMlp, ...]:
        """Return the mixtures of experts among the layers' feed-forward networks."""
        return tuple(layer.mlp for layer in self.layers if isinstance(layer.mlp, ExpertMlp))

    @cached_property
    def linear_layers(self) -> tuple[LinearAttention, ...]:
        """Return the linear attention of the layers that keep a state in place of keys and values."""
        return tuple(layer.attention for layer in self.layers if isinstance(layer.attention, LinearAttention))

    @cached_property
    def layer_kinds(self) -> tuple[tuple[Attention, Mlp], ...]:
        """Return the different kinds of layers, windows aside."""
        return tuple(dict.fromkeys((layer.attention, layer.mlp) for layer in self.layers))

    @property
    def is_moe(self) -> bool:
        """Return True if any layer has experts."""
        return bool(self.expert_layers)
