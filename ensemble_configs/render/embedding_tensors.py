# SPDX-License-Identifier: Apache-2.0
"""The names of an embedding model's tensors, which its config, its adapter and its clients share."""

TEXTS, IDS, DIMENSIONS = "text_input", "input_ids", "dimensions"
VECTORS, NUM_TOKENS = "embedding", "num_input_tokens"
PADDING = -1  # behind the token ids of a row that is shorter than others of its request
