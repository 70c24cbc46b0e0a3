# SPDX-License-Identifier: Apache-2.0
"""Chat messages, the template that a checkpoint brings, and the numbers that prompts are known by."""
