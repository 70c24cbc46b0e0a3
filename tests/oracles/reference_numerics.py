# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of one rank of a decoder, in numpy, for what `sharded_reference` runs.

Hidden states are ``[num_tokens, hidden_size]``. Attention and feed-forward networks return the rank's share of a sum.
Written after the modelling code that each family publishes; the tests compare with the results of that code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from build_engines.checkpoint.model_shape import ExpertMlp, GroupedAttention, LatentAttention
from trireme.base.errors import SpecError

Array = npt.NDArray[np.float64]

_LATENT_EPSILON = 1e-6  # of DeepSeek's norms inside attention, whatever the config says of the others


@dataclass(frozen=True)
class Numerics:
    """The settings of a `config.json` that are not its shape."""

    epsilon: float
    rope_theta: float
    is_rope_interleaved: bool = False  # DeepSeek: the two numbers that turn together are neighbours
    is_sigmoid_router: bool = False  # DeepSeek-V3: sigmoid scores, a bias that only chooses, experts in groups
    num_groups: int = 1
    groups_per_token: int = 1
    is_normalized: bool = True  # the chosen experts' weights are divided by their sum
    routed_scale: float = 1.0
    norm_offset: float = 0.0  # Qwen3-Next: norms are stored as what is added to 1
    rotary_fraction: float = 1.0  # of a head's numbers, at its start

    @classmethod
    def from_config(cls, config: Mapping[str, object], architecture: str) -> "Numerics":
        """Read them.

        Raises:
            SpecError: an activation other than SiLU, or scaled rotary positions.
        """
        activation = config.get("hidden_act", "silu")
        if activation != "silu":
            raise SpecError(
                f"hidden_act {activation!r} is not run here; only silu", field="hidden_act", value=activation
            )
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        assert isinstance(rope, dict)
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise SpecError(f"rope_type {kind!r} is not run here; only default", field="rope_type", value=kind)
        is_deepseek = architecture == "DeepseekV3ForCausalLM"
        return cls(
            epsilon=_number(config, "rms_norm_eps", 1e-6),
            rope_theta=_number(rope, "rope_theta", _number(config, "rope_theta", 10000.0)),
            is_rope_interleaved=is_deepseek and config.get("rope_interleave") is not False,
            is_sigmoid_router=is_deepseek,
            num_groups=int(_number(config, "n_group", 1)),
            groups_per_token=int(_number(config, "topk_group", 1)),
            is_normalized=architecture == "MixtralForCausalLM" or config.get("norm_topk_prob") is True,
            routed_scale=_number(config, "routed_scaling_factor", 1.0),
            norm_offset=1.0 if architecture == "Qwen3NextForCausalLM" else 0.0,
            rotary_fraction=_number(config, "partial_rotary_factor", 1.0),
        )


def _number(values: Mapping[str, object], name: str, default: float) -> float:
    value = values.get(name)
    return float(value) if isinstance(value, int | float) else default


def rms_norm(x: Array, weight: Array, epsilon: float) -> Array:
    """Return the root mean square norm over the last axis."""
    scaled: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight
    return scaled


def silu(x: Array) -> Array:
    """Return ``x * sigmoid(x)``."""
    return x * sigmoid(x)


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Return ``x @ weight.T``, the weight as in the checkpoint."""
    product = x @ weight.T
    return product if bias is None else product + bias


def rotate(x: Array, numerics: Numerics) -> Array:
    """Return ``[num_tokens, heads, size]`` with rotary positions 0, 1, 2, ... applied."""
    turned_size = round(x.shape[-1] * numerics.rotary_fraction)
    if turned_size < x.shape[-1]:
        whole = replace(numerics, rotary_fraction=1.0)
        return np.concatenate([rotate(x[..., :turned_size], whole), x[..., turned_size:]], axis=-1)
    num_tokens, _, size = x.shape
    if numerics.is_rope_interleaved:
        x = np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)
    frequencies = numerics.rope_theta ** (-np.arange(0, size, 2) / size)
    angles = (np.arange(num_tokens)[:, None] * frequencies)[:, None, :]
    first, second = np.split(x, 2, axis=-1)
    turned = [first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)]
    return np.concatenate(turned, axis=-1)


def attend(queries: Array, keys: Array, values: Array, window: int | None = None) -> Array:
    """Return causal attention over ``[num_tokens, heads, size]`` each.

    Keys and values may have fewer heads than queries.

    Returns:
        ``[num_tokens, heads * size of a value]``
    """
    num_tokens, num_heads, size = queries.shape
    group = num_heads // keys.shape[1]
    keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", queries, keys) / np.sqrt(size)
    distance = np.arange(num_tokens)[:, None] - np.arange(num_tokens)
    is_hidden = (distance < 0) | (distance >= (window or num_tokens))
    mixed: Array = np.einsum("hqk,khd->qhd", _softmax(np.where(is_hidden, -np.inf, scores)), values)
    return mixed.reshape(num_tokens, -1)


def grouped_attention(
    projected: tuple[Array, Array, Array], one: GroupedAttention, numerics: Numerics,
    norms: tuple[Array, Array] | None, window: int | None,
) -> Array:  # fmt: skip
    """Return the attention of a rank's heads.

    Queries, keys and values are ``[num_tokens, heads * head_dim]`` each.
    """
    queries, keys, values = (part.reshape(len(part), -1, one.head_dim) for part in projected)
    if norms is not None:
        queries, keys = (rms_norm(x, norm, numerics.epsilon) for x, norm in zip((queries, keys), norms, strict=True))
    return attend(rotate(queries, numerics), rotate(keys, numerics), values, window)


def latent_attention(
    queries: Array, low_rank: Array, latent_norm: Array, kv_up: Array, one: LatentAttention, numerics: Numerics
) -> Array:
    """Return the attention of a rank's heads.

    `low_rank` is what all ranks have: the latent vector and the key's rotary part.
    """
    num_tokens = len(queries)
    queries = queries.reshape(num_tokens, -1, one.qk_nope_head_dim + one.qk_rope_head_dim)
    latent = rms_norm(low_rank[:, : one.kv_lora_rank], latent_norm, _LATENT_EPSILON)
    keys_values = linear(latent, kv_up).reshape(num_tokens, -1, one.qk_nope_head_dim + one.v_head_dim)
    turned_key = rotate(low_rank[:, None, one.kv_lora_rank :], numerics)
    keys = np.concatenate(
        [keys_values[..., : one.qk_nope_head_dim], np.repeat(turned_key, keys_values.shape[1], axis=1)], axis=-1
    )
    turned_queries = rotate(queries[..., one.qk_nope_head_dim :], numerics)
    queries = np.concatenate([queries[..., : one.qk_nope_head_dim], turned_queries], axis=-1)
    return attend(queries, keys, keys_values[..., one.qk_nope_head_dim :])


def latent_norm(x: Array, weight: Array) -> Array:
    """Return the norm of the low rank between the two projections of queries."""
    return rms_norm(x, weight, _LATENT_EPSILON)


def expert_weights(logits: Array, bias: Array | None, mlp: ExpertMlp, numerics: Numerics) -> Array:
    """Return how much of each expert each token takes, ``[num_tokens, num_experts]``; 0 where it was not chosen."""
    if numerics.is_sigmoid_router:
        scores = sigmoid(logits)
        choice = _only_best_groups(scores if bias is None else scores + bias, numerics)
    else:
        scores = choice = _softmax(logits)
    chosen = np.argsort(-choice, axis=-1, kind="stable")[:, : mlp.experts_per_token]
    weights = np.zeros_like(scores)
    np.put_along_axis(weights, chosen, np.take_along_axis(scores, chosen, axis=-1), axis=-1)
    if numerics.is_normalized:
        weights /= weights.sum(axis=-1, keepdims=True)
    return weights * numerics.routed_scale


def _only_best_groups(choice: Array, numerics: Numerics) -> Array:
    """Return the scores with experts outside the best groups at 0.

    A group is as good as its two best experts together.
    """
    grouped = choice.reshape(len(choice), numerics.num_groups, -1)
    of_group = np.sort(grouped, axis=-1)[..., -2:].sum(axis=-1)
    best = np.argsort(-of_group, axis=-1, kind="stable")[:, : numerics.groups_per_token]
    is_best = np.zeros(of_group.shape, bool)
    np.put_along_axis(is_best, best, True, axis=-1)
    return np.where(is_best[..., None], grouped, 0.0).reshape(choice.shape)


def _softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def sigmoid(x: Array) -> Array:
    """Return the logistic function of each number."""
    result: Array = 1 / (1 + np.exp(-x))
    return result


def sigmoid_gate(x: Array, weight: Array) -> Array:
    """Return how much of the shared experts each token takes (Qwen2-MoE)."""
    return sigmoid(linear(x, weight))
