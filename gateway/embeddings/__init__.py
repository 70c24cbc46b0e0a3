# SPDX-License-Identifier: Apache-2.0
"""Answers that are vectors: OpenAI's path `/v1/embeddings`, and what its requests take of limits and the ledger."""
