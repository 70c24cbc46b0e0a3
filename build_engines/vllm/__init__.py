# SPDX-License-Identifier: Apache-2.0
"""The back end of vLLM: checkpoints in few bits, made by llm-compressor."""
