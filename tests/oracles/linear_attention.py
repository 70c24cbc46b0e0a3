# SPDX-License-Identifier: Apache-2.0
"""Gated DeltaNet in numpy, token by token, for what `sharded_reference` runs of models with linear attention.

Written after the paper (Yang, Kautz and Hatamizadeh, 2024) and the modelling code that Qwen3-Next publishes; the tests
compare with the results of that code. Projections of a rank are key head by key head, so that a rank needs nothing of
the others.
"""

import numpy as np
from reference_numerics import Array, rms_norm, sigmoid, silu

from build_engines.checkpoint.model_shape import LinearAttention

_UNIT_EPSILON = 1e-6  # of the length that queries and keys are divided by


def gated_delta_net(
    mixed: Array, gates: Array, conv: Array, decay: tuple[Array, Array], norm: Array, one: LinearAttention,
    epsilon: float,
) -> Array:  # fmt: skip
    """Return what a rank's value heads give, ``[num_tokens, heads * value_head_dim]``.

    Args:
        mixed: of each key head its query, its key, its heads' values and their output gates.
        gates: of each key head its heads' write strengths and decays.
        conv: ``[channels, 1, kernel]``; channels are the rank's queries, keys and values.
        decay: logarithms of rates, and what is added to the decays.
        norm: of a value head.
    """
    num_tokens, group = len(mixed), one.num_value_heads // one.num_key_heads
    widths = np.cumsum([one.key_head_dim, one.key_head_dim, group * one.value_head_dim])
    per_head = 2 * one.key_head_dim + 2 * group * one.value_head_dim
    parts = np.split(mixed.reshape(num_tokens, -1, per_head), widths, axis=-1)
    queries, keys, values, out_gates = (part.reshape(num_tokens, -1) for part in parts)
    strengths, decays = (
        part.reshape(num_tokens, -1) for part in np.split(gates.reshape(num_tokens, -1, 2 * group), 2, axis=-1)
    )
    inputs = np.concatenate([queries, keys, values], axis=-1)
    convolved = silu(_causal_convolution(inputs, conv[:, 0, :]))
    queries, keys, values = np.split(convolved, np.cumsum([queries.shape[1], keys.shape[1]]), axis=-1)
    queries, keys = (
        np.repeat(_unit(part.reshape(num_tokens, -1, one.key_head_dim)), group, axis=1) for part in (queries, keys)
    )
    values, out_gates = (part.reshape(num_tokens, -1, one.value_head_dim) for part in (values, out_gates))
    kept = np.exp(-np.exp(decay[0]) * np.log1p(np.exp(decays + decay[1])))
    given = _delta_rule(queries / one.key_head_dim**0.5, keys, values, kept, sigmoid(strengths))
    normed: Array = rms_norm(given, norm, epsilon) * silu(out_gates)
    return normed.reshape(num_tokens, -1)


def _causal_convolution(inputs: Array, kernel: Array) -> Array:
    """Return each channel's sum over its last inputs, the newest with the kernel's last number."""
    size = kernel.shape[1]
    padded = np.pad(inputs, ((size - 1, 0), (0, 0)))
    total: Array = np.sum([padded[at : at + len(inputs)] * kernel[:, at] for at in range(size)], axis=0)
    return total


def _unit(x: Array) -> Array:
    scaled: Array = x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + _UNIT_EPSILON)
    return scaled


def _delta_rule(queries: Array, keys: Array, values: Array, kept: Array, strengths: Array) -> Array:
    """Return what the states give: each decays, is corrected towards the token's value, and is asked for the query."""
    state = np.zeros((values.shape[1], keys.shape[-1], values.shape[-1]))
    given = np.empty_like(values)
    for token in range(len(values)):
        state = state * kept[token][:, None, None]
        missing = values[token] - np.einsum("hkv,hk->hv", state, keys[token])
        state = state + np.einsum("hk,hv->hkv", keys[token], strengths[token][:, None] * missing)
        given[token] = np.einsum("hkv,hk->hv", state, queries[token])
    return given
