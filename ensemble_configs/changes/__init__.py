# SPDX-License-Identifier: Apache-2.0
"""What becomes of a running server when one deployment takes the place of another."""
