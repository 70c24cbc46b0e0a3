# SPDX-License-Identifier: Apache-2.0
"""Effects on a running server when one deployment takes the place of another."""
