# SPDX-License-Identifier: Apache-2.0
"""What runs inside and beside Triton: the engine seam, tokenization, exact streaming text, the server's life cycle."""
