# SPDX-License-Identifier: Apache-2.0
"""Chat messages, and the template that a checkpoint brings."""
