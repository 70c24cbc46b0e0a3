# SPDX-License-Identifier: Apache-2.0
"""The back ends of TensorRT-LLM: compiled engines, and checkpoints for its PyTorch engine."""
