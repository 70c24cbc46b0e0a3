# SPDX-License-Identifier: Apache-2.0
"""The way from a Hugging Face checkpoint to a release: plan, quantize, shard, compile, evaluate."""
