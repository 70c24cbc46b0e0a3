# SPDX-License-Identifier: Apache-2.0
"""From a Hugging Face checkpoint to a release: plan, quantize, shard, compile, evaluate."""
