# SPDX-License-Identifier: Apache-2.0
"""The engine seam (`base`) and the providers behind it."""
