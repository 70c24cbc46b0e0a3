# SPDX-License-Identifier: Apache-2.0
"""A model divided by a `ShardPlan` and run on the CPU, rank by rank, each with its own pieces and nothing else.

What ranks tell each other is written out: all-reduce is a sum over the ranks of a stage, all-gather puts their parts of
the vocabulary side by side, stages hand on hidden states. With one rank it is the whole model. It shows that a plan is
right; it is not made to be quick, and computes in 64 bits, so that results differ by the order of sums alone.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import reference_numerics as numerics
from linear_attention import gated_delta_net
from reference_numerics import Array, Numerics

from build_engines.checkpoint.config_values import load_config
from build_engines.checkpoint.model_shape import ExpertMlp, GroupedAttention, LinearAttention
from build_engines.checkpoint.tensor_names import tensor_names
from build_engines.checkpoint.weight_table import Role
from build_engines.sharding.shard_plan import ShardPlan
from build_engines.sharding.tensor_pieces import Piece
from ensemble_configs.releases.safetensors_file import StoredTensor, as_floats, open_tensor, read_header
from trireme.base.errors import SpecError

ARCHITECTURES = (
    "DeepseekV3ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "Phi3ForCausalLM",
    "Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM",
)  # fmt: skip


def sharded_logits(checkpoint: Path, plan: ShardPlan, input_ids: Sequence[int]) -> Array:
    """Return the logits of one sequence, from a checkpoint in 16 or 32 bits and a plan of its model.

    Returns:
        ``[num_tokens, vocab_size]``

    Raises:
        SpecError: an architecture, an activation or a way of dividing that is not run here; a tensor is missing.
    """
    _check_can_run(plan)
    stored = _stored_tensors(checkpoint)
    settings = Numerics.from_config(load_config(checkpoint), plan.model.architecture)
    ids = np.asarray(input_ids)
    hidden: Array | None = None
    for stage, layers in enumerate(plan.stages):
        size = plan.sizes.stage_size
        ranks = [_Rank(plan, rank, settings, stored) for rank in range(stage * size, (stage + 1) * size)]
        hidden = _embed(ranks, ids, plan) if hidden is None else hidden.copy()  # what the stage before has sent
        for layer in layers:
            hidden = _layer(ranks, layer, hidden)
    assert hidden is not None
    return _head(ranks, hidden, plan)


class _Rank:
    """A rank: its pieces by name, and what it computes of a layer."""

    def __init__(self, plan: ShardPlan, rank: int, settings: Numerics, stored: dict[str, StoredTensor]) -> None:
        self.model = plan.model
        self.sizes = plan.sizes
        self.settings = settings
        self.place = plan.sizes.place(rank)
        self.pieces = {(piece.weight.name, piece.weight.role is Role.HEAD): piece for piece in plan.pieces(rank)}
        self.tensors = {key: _take(piece, stored) for key, piece in self.pieces.items()}
        self.names = tensor_names(plan.model.architecture)

    def find(self, key: str, layer: int = -1, expert: int = -1) -> Array | None:
        """Return what the rank holds of a tensor, by its key in the table of names.

        None: the model or the rank has none.
        """
        name = self.names.get(key, "").replace("{l}", str(layer)).replace("{e}", str(expert))
        return self.tensors.get((name, key == "head"))

    def get(self, key: str, layer: int = -1, expert: int = -1) -> Array:
        """Return what the rank holds of a tensor that it must have."""
        found = self.find(key, layer, expert)
        assert found is not None, f"rank {self.place.rank} has no {key} of layer {layer}"
        return found

    def norm(self, key: str, layer: int = -1) -> Array:
        """Return what a norm multiplies by."""
        return self.get(key, layer) + self.settings.norm_offset

    def bias(self, key: str, layer: int) -> Array | None:
        name = self.names[key].replace("{l}", str(layer)).removesuffix(".weight") + ".bias"
        return self.tensors.get((name, False))

    def attention(self, layer: int, x: Array) -> Array:
        """Return the share of the attention's output that the rank's heads give, without the output's bias."""
        one, window = self.model.layers[layer].attention, self.model.layers[layer].sliding_window
        if isinstance(one, GroupedAttention):
            norms = (self.norm("query_norm", layer), self.norm("key_norm", layer)) if one.has_qk_norm else None
            query, key, value = self._projected(layer, x, one)
            gate = None
            if one.has_output_gate:
                query, gate = (
                    part.reshape(len(x), -1)
                    for part in np.split(query.reshape(len(x), -1, 2 * one.head_dim), 2, axis=-1)
                )
            mixed = numerics.grouped_attention((query, key, value), one, self.settings, norms, window)
            mixed = mixed if gate is None else mixed * numerics.sigmoid(gate)
        elif isinstance(one, LinearAttention):
            return self._linear_attention(layer, x, one)
        else:
            if one.q_lora_rank is None:
                queries = numerics.linear(x, self.get("query", layer))
            else:
                low_rank = numerics.linear(x, self.get("query_down", layer))
                low_rank = numerics.latent_norm(low_rank, self.get("query_down_norm", layer))
                queries = numerics.linear(low_rank, self.get("query_up", layer))
            low_rank = numerics.linear(x, self.get("kv_down", layer))
            mixed = numerics.latent_attention(
                queries, low_rank, self.get("kv_down_norm", layer), self.get("kv_up", layer), one, self.settings
            )
        return numerics.linear(mixed, self.get("output", layer))

    def _linear_attention(self, layer: int, x: Array, one: LinearAttention) -> Array:
        projected, gates = (numerics.linear(x, self.get(part, layer)) for part in ("linear_in", "linear_gates"))
        decay = self.get("decay", layer), self.get("time_step", layer)
        conv, norm = self.get("conv", layer), self.get("linear_norm", layer)
        mixed = gated_delta_net(projected, gates, conv, decay, norm, one, self.settings.epsilon)
        return numerics.linear(mixed, self.get("linear_output", layer))

    def _projected(self, layer: int, x: Array, one: GroupedAttention) -> tuple[Array, Array, Array]:
        if "qkv" not in self.names:
            query, key, value = (
                numerics.linear(x, self.get(part, layer), self.bias(part, layer)) for part in ("query", "key", "value")
            )
            return query, key, value
        fused = numerics.linear(x, self.get("qkv", layer), self.bias("qkv", layer))
        queries = one.num_heads // self.sizes.tp_size * one.head_dim
        keys = (fused.shape[1] - queries) // 2
        return fused[:, :queries], fused[:, queries : queries + keys], fused[:, queries + keys :]

    def mlp(self, layer: int, x: Array) -> Array:
        """Return the rank's share of the feed-forward network's output, without the output's bias."""
        mlp = self.model.layers[layer].mlp
        if not isinstance(mlp, ExpertMlp):
            return self._network(layer, x, "gate", "up", "down")
        logits = numerics.linear(x, self.get("router", layer))
        taken = numerics.expert_weights(logits, self.find("router_bias", layer), mlp, self.settings)
        share = np.zeros_like(x)
        for expert in range(mlp.num_experts):
            if self.find("expert_down", layer, expert) is not None:  # this rank's
                out = self._network(layer, x, "expert_gate", "expert_up", "expert_down", expert)
                share += taken[:, expert : expert + 1] * out
        if mlp.shared_intermediate_size:
            shared = self._network(layer, x, "shared_gate", "shared_up", "shared_down")
            gate = self.find("shared_router", layer)
            share += shared if gate is None else numerics.sigmoid_gate(x, gate) * shared
        return share

    def _network(self, layer: int, x: Array, gate_key: str, up_key: str, down_key: str, expert: int = -1) -> Array:
        if gate_key == "gate" and "gate_up" in self.names:
            gate, up = np.split(numerics.linear(x, self.get("gate_up", layer), self.bias("gate_up", layer)), 2, axis=-1)
        else:
            gate, up = (
                numerics.linear(x, self.get(key, layer, expert), self.bias(key, layer)) for key in (gate_key, up_key)
            )
        return numerics.linear(numerics.silu(gate) * up, self.get(down_key, layer, expert))


def _layer(ranks: list[_Rank], layer: int, hidden: Array) -> Array:
    """Return the output of one layer on all ranks of its stage, with two all-reduces.

    Every rank has an equal `hidden`.
    """
    norm = numerics.rms_norm
    epsilon = ranks[0].settings.epsilon
    shares = [rank.attention(layer, norm(hidden, rank.norm("input_norm", layer), epsilon)) for rank in ranks]
    hidden = hidden + _all_reduce(shares, ranks[0].bias("output", layer))
    shares = [rank.mlp(layer, norm(hidden, rank.norm("post_norm", layer), epsilon)) for rank in ranks]
    return hidden + _all_reduce(shares, ranks[0].bias("down", layer))


def _all_reduce(shares: Iterable[Array], bias: Array | None = None) -> Array:
    """Return the sum over ranks; a bias, which every rank has, is added once, after it."""
    total: Array = np.sum(list(shares), axis=0)
    return total if bias is None else total + bias


def _embed(ranks: list[_Rank], ids: npt.NDArray[np.int64], plan: ShardPlan) -> Array:
    """Split along the vocabulary, a rank gives zeros for what it does not have; along the hidden size, all-gather."""
    name = (ranks[0].names["embedding"], False)
    parts = []
    for rank in ranks:
        rows, ((start, end),) = rank.tensors[name], rank.pieces[name].ranges(0)
        is_here = (ids >= start) & (ids < end)
        parts.append(np.where(is_here[:, None], rows[np.where(is_here, ids - start, 0)], 0.0))
    match plan.sizes.embedding:
        case "vocab":
            return _all_reduce(parts)
        case "hidden" if plan.sizes.tp_size > 1:
            return np.concatenate(parts, axis=1)
    return parts[0]


def _head(ranks: list[_Rank], hidden: Array, plan: ShardPlan) -> Array:
    """Return the logits, each rank's part of the vocabulary side by side.

    The padding at the end is cut off.
    """
    is_shared = plan.sizes.shares_head(plan.model)
    key = "embedding" if plan.model.is_tied else "head"
    parts = []
    for rank in ranks:
        x = numerics.rms_norm(hidden, rank.norm("final_norm"), rank.settings.epsilon)
        parts.append(numerics.linear(x, rank.tensors[rank.names[key], not is_shared]))
    return np.concatenate(parts, axis=1)[:, : plan.model.vocab_size]


def _take(piece: Piece, stored: dict[str, StoredTensor]) -> Array:
    """Return a piece's numbers, the only ones that are read from the file."""
    tensor = stored.get(piece.weight.name)
    if tensor is None or tensor.shape != piece.weight.shape:
        found = "is missing" if tensor is None else f"has the shape {list(tensor.shape)}"
        raise SpecError(
            f"{piece.weight.name} {found}; the config.json wants {list(piece.weight.shape)}", field=piece.weight.name
        )
    numbers = open_tensor(tensor)
    for cut in piece.cuts:
        taken = [numbers[(slice(None),) * cut.axis + (slice(start, end),)] for start, end in cut.ranges]
        numbers = np.concatenate(taken, axis=cut.axis)
    padding = [(0, piece.padding), *[(0, 0)] * (numbers.ndim - 1)]
    return np.pad(as_floats(tensor, numbers).astype(np.float64), padding)


def _stored_tensors(checkpoint: Path) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        tensors |= read_header(path)
    return tensors


def _check_can_run(plan: ShardPlan) -> None:
    if plan.model.architecture not in ARCHITECTURES:
        raise SpecError(
            f"{plan.model.architecture} is not run here; there are {', '.join(ARCHITECTURES)}", field="architectures"
        )
    if plan.sizes.cp_size > 1 or plan.sizes.is_attention_dp:
        raise SpecError("context parallelism and attention DP are not run here", field="cp_size")
