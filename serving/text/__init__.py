# SPDX-License-Identifier: Apache-2.0
"""Between token ids and exact text: no Triton, and no engine."""
