# SPDX-License-Identifier: Apache-2.0
"""Code inside and beside Triton: the engine seam, tokenization, exact streaming text, the server's life cycle."""
