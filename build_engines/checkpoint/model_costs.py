# SPDX-License-Identifier: Apache-2.0
"""The cost of a model per token: weights by kind, values left in the KV cache, floating point operations."""

from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from build_engines.checkpoint.model_shape import Attention, DenseMlp, ExpertMlp, LatentAttention, ModelShape
from build_engines.checkpoint.weight_formats import FormatPlan
from build_engines.checkpoint.weight_table import Role, Weight, weights_of

_MLP_ROLES = frozenset({Role.GATE, Role.UP, Role.GATE_UP, Role.DOWN})
_OUTER_ROLES = frozenset({Role.EMBEDDING, Role.HEAD})
_OTHER_ROLES = frozenset({Role.NORM, Role.ROUTER, Role.SINK, Role.CONV, Role.DECAY})


class FormatBytes(NamedTuple):
    """Bytes of a model's parts in a format."""

    attention: int
    dense_mlp: int
    experts: int
    outer: int  # embedding and head
    other: int  # norms, routers, convolutions, biases


@dataclass(frozen=True, eq=False)  # one for a model: compared by identity, for caches
class ModelCosts:
    """Sums over a model's tensors, all of the whole model, before it is split over ranks."""

    model: ModelShape
    attention_size: int  # numbers in the linear layers of attention
    dense_mlp_size: int  # of the feed-forward networks that every token meets, shared experts too
    expert_size: int  # of all experts
    head_size: int  # of the head's matrix, which a tied model reads, too

    @classmethod
    def of(cls, model: ModelShape) -> "ModelCosts":
        """Count the costs of a model."""
        return _counted(model)

    def bytes_in(self, formats: FormatPlan) -> "FormatBytes":
        """Return the bytes of the model's parts in the given formats, scales included."""
        return _format_bytes(self, formats)

    def experts_met_share(self, num_tokens: float) -> float:
        """Return the share of the experts' weights that a step with `num_tokens` tokens reads."""
        experts = self.model.expert_layers
        if not experts:
            return 0.0
        return experts[0].experts_met(max(1.0, num_tokens)) / experts[0].num_experts

    @cached_property
    def active_expert_size(self) -> float:
        """Return the number of weights in the experts that one token is routed to."""
        experts = self.model.expert_layers
        return self.expert_size * experts[0].experts_per_token / experts[0].num_experts if experts else 0.0

    @cached_property
    def num_latent_layers(self) -> int:
        """Return the number of layers with latent attention."""
        return sum(isinstance(layer.attention, LatentAttention) for layer in self.model.layers)

    @cached_property
    def active_intermediate_size(self) -> float:
        """Return the width of the feed-forward activations of one token, mean over the layers."""
        widths = 0
        for layer in self.model.layers:
            match layer.mlp:
                case DenseMlp(size):
                    widths += size
                case ExpertMlp() as mlp:
                    widths += mlp.intermediate_size * mlp.experts_per_token + mlp.shared_intermediate_size
        return widths / self.model.num_layers

    @cached_property
    def routed_width(self) -> float:
        """Return the width of what a token sends to its experts, mean over the layers."""
        experts = self.model.expert_layers
        return sum(each.experts_per_token for each in experts) * self.model.hidden_size / self.model.num_layers

    @cached_property
    def state_values(self) -> int:
        """Return the numbers that a sequence keeps in layers of linear attention, whatever its length."""
        return sum(each.state_values for each in self.model.linear_layers)

    @cached_property
    def recurrent_state_values(self) -> int:
        """Return the numbers of that state but for the inputs of the convolutions."""
        return sum(each.recurrent_state_values for each in self.model.linear_layers)

    @cached_property
    def linear_attention_flops(self) -> int:
        """Return the operations of one token on the states of linear attention, in all layers."""
        return sum(each.flops_per_token for each in self.model.linear_layers)

    @cached_property
    def _kinds_of_layer(self) -> list[tuple[int, Attention, int | None]]:
        """Return how many layers have which attention and which window."""
        counts = Counter((layer.attention, layer.sliding_window) for layer in self.model.layers)
        return [(count, attention, window) for (attention, window), count in counts.items()]

    def kv_values_kept(self, num_tokens: float) -> float:
        """Return the numbers in the KV cache of one sequence of `num_tokens` tokens: all layers, windows cut."""
        return sum(
            count * attention.kv_values_per_token * _kept(num_tokens, window)
            for count, attention, window in self._kinds_of_layer
        )

    def decode_attention_flops(self, num_tokens: float) -> float:
        """Return the attention operations of one token that looks back at `num_tokens` tokens, in all layers."""
        return sum(
            count * attention.decode_flops_per_pair * _kept(num_tokens, window)
            for count, attention, window in self._kinds_of_layer
        )

    def prefill_attention_flops(self, num_tokens: float) -> float:
        """Return the attention operations of one prompt of `num_tokens` tokens, in all layers.

        Each token looks back at every token before it: n^2 / 2 pairs; within a window w, w n - w^2 / 2.
        """
        total = 0.0
        for count, attention, window in self._kinds_of_layer:
            kept = _kept(num_tokens, window)
            total += count * attention.prefill_flops_per_pair * (kept * num_tokens - kept**2 / 2)
        return total


def _kept(num_tokens: float, window: int | None) -> float:
    return num_tokens if window is None else min(num_tokens, window)


def _kind(weight: Weight) -> int:
    """Return 0 for attention, 1 dense feed-forward, 2 experts, 3 embedding and head, 4 the rest."""
    if weight.role in _OUTER_ROLES:
        return 3
    if weight.is_bias or weight.role in _OTHER_ROLES:
        return 4
    if weight.role not in _MLP_ROLES:
        return 0
    return 2 if weight.is_of_experts else 1


@cache
def _weights(model: ModelShape) -> tuple[Weight, ...]:
    return tuple(weights_of(model))


@cache
def _counted(model: ModelShape) -> ModelCosts:
    sizes = [0, 0, 0, 0, 0]
    for weight in _weights(model):
        sizes[_kind(weight)] += weight.size
    return ModelCosts(
        model=model,
        attention_size=sizes[0],
        dense_mlp_size=sizes[1],
        expert_size=sizes[2],
        head_size=model.vocab_size * model.hidden_size,
    )


@cache
def _format_bytes(costs: ModelCosts, formats: FormatPlan) -> FormatBytes:
    totals = [0, 0, 0, 0, 0]
    for weight in _weights(costs.model):
        totals[_kind(weight)] += formats.num_bytes([weight])
    return FormatBytes(*totals)
