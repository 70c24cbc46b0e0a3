# SPDX-License-Identifier: Apache-2.0
"""The engine seam (`seam`) and the providers behind it."""
