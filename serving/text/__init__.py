# SPDX-License-Identifier: Apache-2.0
"""The conversion between token ids and exact text, without Triton and without an engine."""
