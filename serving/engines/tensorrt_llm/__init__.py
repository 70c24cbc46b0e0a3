# SPDX-License-Identifier: Apache-2.0
"""The engines of TensorRT-LLM: compiled, and PyTorch."""
