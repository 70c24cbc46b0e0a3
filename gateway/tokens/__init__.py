# SPDX-License-Identifier: Apache-2.0
"""The tokens of answers, read by the tokenizer of their model: their texts, and the stop string that they end with."""
